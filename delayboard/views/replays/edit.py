"""Editing one message of a draft: what is sent instead of the message, which stays as it was."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from delayboard.dead_letters.parked.redact_cause import hides_history
from delayboard.dead_letters.replay.edit_headers import TYPES, EditError, HeaderRow, Typed
from delayboard.dead_letters.replay.edit_message import (
    LARGEST_BODY,
    diff_sent,
    edit_message,
    read_shown_headers,
    read_version,
    undo_edit,
)
from delayboard.forms.content import HeaderRowsWidget
from delayboard.models import Body, ReplayBatch, ReplayEdit, ReplayItem
from delayboard.views.replays.batches import with_batch
from topology import audit, redaction, snapshots
from topology.clients.forms import read_trace
from topology.models import Role
from topology.redaction import Redaction

# Longest body that is typed; a longer one is replaced by a file.
LONGEST_TYPED = 500_000
# Control characters that a form sends unchanged; an end of line is restored by `_with_ends_of`.
_PLAIN = frozenset("\t\n")


@require_http_methods(["GET", "HEAD", "POST"])
@with_batch(Role.OPERATOR)
def replay_item(request: HttpRequest, batch: ReplayBatch, position: int) -> HttpResponse:
    """The form of one message, and what is sent by it."""
    rows = batch.items.select_related("parked_message", "route")
    item = get_object_or_404(rows, position=position)
    item.batch = batch
    problems: dict[str, str] = {}
    if request.method == "POST":
        try:
            sentence = _changed(request, item)
        except EditError as error:
            problems = error.problems
        else:
            messages.success(request, sentence)
            return redirect("replay_batch", pk=batch.pk)
    return _page(request, item, problems)


def _changed(request: HttpRequest, item: ReplayItem) -> str:
    """Apply the form; returns a sentence. Raises EditError."""
    version = request.POST.get("version")
    if request.POST.get("undo") == "1":
        undo_edit(request.user, item, version=version)
        return f"Message {item.position} has no edits."
    wanted, dropped = _headers_sent(request, item)
    body = _body_sent(request, item)
    if not wanted and not dropped and body is None:
        return f"Nothing was changed in message {item.position}."
    made = edit_message(
        request.user,
        item,
        set_headers=wanted,
        drop_headers=dropped,
        body=body,
        version=version,
    )
    if made is None:
        return f"Message {item.position} has no edits."
    return f"Message {item.position} is edited and checked again."


def _page(request: HttpRequest, item: ReplayItem, problems: dict[str, str]) -> HttpResponse:
    rules = redaction.rules_for(request.user, item.batch.broker)
    what = f"{item.parked_message_id} of replay {item.batch_id}"
    audit.record(request.user, "parked message read", broker=item.batch.broker, what=what)
    context: dict[str, Any] = {
        "batch": item.batch,
        "broker": item.batch.broker,
        "latest": snapshots.fresh(item.batch.broker),
        "item": item,
        "is_edited": ReplayEdit.objects.filter(item=item).exists(),
        # After a refusal it is still the one that the user saw.
        "version": request.POST.get("version", read_version(item)),
        "problems": problems,
        "types": tuple(TYPES),
        "hides_targets": hides_history(rules),
        "largest": LARGEST_BODY,
    }
    try:
        headers = read_shown_headers(item, rules)
        typed = [one for one in headers if _is_typed(one)]
        context["trace"] = read_trace({one.name: one.text for one in headers})
        context["rows"] = [*(_rows_sent(request) or typed), HeaderRow(), HeaderRow()]
        context["locked"] = [one for one in headers if not _is_typed(one)]
        context |= _body(request, item, rules)
        context["diff"] = diff_sent(item, rules, hides_targets=context["hides_targets"])
    except EditError as error:
        context["unreadable"] = str(error)
    return render(request, "delayboard/replay_item.html", context)


def _is_typed(header: HeaderRow) -> bool:
    """Whether a form can show it, and may change it."""
    is_plain = _can_be_typed(header.name) and _can_be_typed(_lines_of(header.text))
    return bool(header.name) and not header.lock and is_plain and "\n" not in header.name


def _can_be_typed(text: str) -> bool:
    return all(sign in _PLAIN or (sign.isprintable() or sign > "\x9f") for sign in text)


def _rows_sent(request: HttpRequest) -> list[HeaderRow]:
    """The rows of headers as they were typed, without empty ones; none where none were sent."""
    rows = HeaderRowsWidget().value_from_datadict(request.POST, request.FILES, "headers") or ()
    texts = (row._replace(text=_lines_of(row.text)) for row in rows)
    return [row for row in texts if row.name or row.text]


def _headers_sent(request: HttpRequest, item: ReplayItem) -> tuple[dict[str, Typed], list[str]]:
    """The headers that are another now or new, and those without a row. Raises EditError."""
    if "headers-name" not in request.POST:
        return {}, []
    rules = redaction.rules_for(request.user, item.batch.broker)
    shown = {one.name: one for one in read_shown_headers(item, rules)}
    found: dict[str, Typed] = {}
    for row in _rows_sent(request):
        if not row.name:
            raise EditError({"": "Enter a header name."})
        if row.name in found:
            raise EditError({row.name: "Another row has this name."})
        found[row.name] = Typed(row.type, row.text)
    dropped = [name for name, one in shown.items() if _is_typed(one) and name not in found]
    known = {name: Typed(one.type, _lines_of(one.text)) for name, one in shown.items()}
    return {name: typed for name, typed in found.items() if typed != known.get(name)}, dropped


def _body_sent(request: HttpRequest, item: ReplayItem) -> bytes | None:
    """None where it stays as it is. Raises EditError."""
    uploaded = request.FILES.get("file")
    if uploaded is not None and not isinstance(uploaded, list):
        if (uploaded.size or 0) > LARGEST_BODY:
            raise EditError({"body": f"The body is larger than {LARGEST_BODY // 1_000_000} MB."})
        return bytes(uploaded.read())
    if "body" not in request.POST:
        return None
    text, known = _lines_of(request.POST["body"]), _text_of(_body_of(item))
    if known is None or text == _lines_of(known):
        return None
    is_windows = "\r\n" in known and "\n" not in known.replace("\r\n", "")
    return (text.replace("\n", "\r\n") if is_windows else text).encode("utf-8", "surrogatepass")


def _body(request: HttpRequest, item: ReplayItem, rules: Redaction) -> dict[str, Any]:
    if rules.body_paths:
        return {"hides_body": True}
    text = _text_of(_body_of(item))
    if "body" in request.POST and text is not None:
        text = _lines_of(request.POST["body"])
    return {"body": text}


def _body_of(item: ReplayItem) -> Body | None:
    made = ReplayEdit.objects.select_related("body").filter(item=item).first()
    if made is not None:
        return made.body
    return item.parked_message.body if item.parked_message else None


def _text_of(body: Body | None) -> str | None:
    """The body where it can be typed; None for bytes that are no plain text, and for very long."""
    if body is None or body.size > LONGEST_TYPED:
        return None
    try:
        text = bytes(body.data).decode()
    except UnicodeDecodeError:
        return None
    return text if _can_be_typed(_lines_of(text)) else None


def _lines_of(text: str) -> str:
    """With the ends of lines that a form does not keep."""
    return text.replace("\r\n", "\n")
