"""Editing one message of a draft: what is sent instead of the message, which stays as it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from delayboard.dead_letters.parked.redact_cause import hides_history
from delayboard.dead_letters.replay.draft.edit_message import (
    LARGEST_BODY,
    edit_message,
    read_shown_headers,
    undo_edit,
)
from delayboard.dead_letters.replay.publish.edit_headers import EditError, Header, Typed
from delayboard.dead_letters.replay.publish.header_values import TYPES
from delayboard.models import Body, ReplayBatch, ReplayEdit, ReplayItem
from delayboard.views.replays.batches import with_batch
from topology import audit, latest, redaction
from topology.models import Role
from topology.redaction import Redaction

NEW = 2
# A longer body is replaced by a file.
LONGEST_TYPED = 500_000
# What a form hands on as it is; a line's end is brought back by `_with_ends_of`.
_PLAIN = frozenset("\t\n")


class Line(NamedTuple):
    """A header in the form; `lock` says why its value cannot be typed here."""

    header: Header
    lock: str
    is_long: bool
    can_be_dropped: bool


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
    if request.POST.get("undo") == "1":
        undo_edit(request.user, item)
        return f"Message {item.position} has no edits."
    wanted, dropped, body = (
        _headers_sent(request, item),
        _dropped(request),
        _body_sent(request, item),
    )
    if not wanted and not dropped and body is None:
        return f"Nothing was changed in message {item.position}."
    made = edit_message(request.user, item, set_headers=wanted, drop_headers=dropped, body=body)
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
        "latest": latest.fresh(item.batch.broker),
        "item": item,
        "is_edited": ReplayEdit.objects.filter(item=item).exists(),
        "problems": problems,
        "types": tuple(TYPES),
        "sent": _sent_lines(request),
        "hides_targets": hides_history(rules),
        "largest": LARGEST_BODY,
    }
    try:
        context["lines"] = _lines(read_shown_headers(item, rules), _typed(request))
        context |= _body(request, item, rules)
    except EditError as error:
        context["unreadable"] = str(error)
    return render(request, "delayboard/replay_item.html", context)


def _typed(request: HttpRequest) -> dict[str, str]:
    """The texts of headers as they were sent."""
    sent = request.POST
    texts = map(_lines_of, sent.getlist("text"))
    return dict(zip(sent.getlist("header"), texts, strict=False))


def _lines(headers: Iterable[Header], typed: Mapping[str, str]) -> list[Line]:
    found = []
    for header in headers:
        can_be_named = _can_be_typed(header.name) and "\n" not in header.name
        lock = header.lock
        if not lock and not (can_be_named and _can_be_typed(header.text)):
            lock = "The value contains characters that a form cannot show."
        is_long = len(header.text) > 60 or "\n" in header.text
        if not lock:
            header = header._replace(text=typed.get(header.name, header.text))
        found.append(Line(header, lock, is_long, can_be_named and not header.lock))
    return found


def _can_be_typed(text: str) -> bool:
    return all(sign in _PLAIN or (sign.isprintable() or sign > "\x9f") for sign in text)


def _headers_sent(request: HttpRequest, item: ReplayItem) -> dict[str, Typed]:
    """Those whose text is another now, and new ones. Raises EditError."""
    rules = redaction.rules_for(request.user, item.batch.broker)
    known = {header.name: header.text for header in read_shown_headers(item, rules)}
    found = {
        name: Typed("", text)
        for name, text in _typed(request).items()
        if name in known and text != _lines_of(known[name])
    }
    for name, kind, text in _sent_lines(request):
        if name in known:
            raise EditError({name: "This header already exists. Change its value above."})
        if name:
            found[name] = Typed(kind, text)
        elif text:
            raise EditError({"": "Enter a header name."})
    return found


def _sent_lines(request: HttpRequest) -> list[tuple[str, str, str]]:
    """New headers as they were typed: name, type, text; empty ones up to NEW."""
    sent = request.POST
    columns = (sent.getlist(f"new-{part}") for part in ("name", "type", "text"))
    lines = [
        (name.strip(), kind, _lines_of(text)) for name, kind, text in zip(*columns, strict=False)
    ]
    return (lines + [("", "text", "")] * NEW)[: max(NEW, len(lines))]


def _dropped(request: HttpRequest) -> list[str]:
    return request.POST.getlist("drop")


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
    return _with_ends_of(known, text).encode("utf-8", "surrogatepass")


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


def _with_ends_of(known: str, text: str) -> str:
    """With the ends of lines that were there before."""
    is_windows = "\r\n" in known and "\n" not in known.replace("\r\n", "")
    return text.replace("\n", "\r\n") if is_windows else text
