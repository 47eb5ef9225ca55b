"""Client libraries of a broker that operators describe, where Delayboard does not know them."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from delayboard.dead_letters.parked.groups import newest_of
from delayboard.dead_letters.parked.redact_cause import seen_group
from delayboard.dead_letters.presentation import example, try_convention
from delayboard.forms.client_convention import ClientConventionForm, make_values, write_place
from delayboard.models import MessageGroup
from delayboard.views.show_refusal import show_refusal
from topology import access, audit, redaction, snapshots
from topology.clients.conventions import (
    MOST_CHARACTERS,
    TEXT_FORMS,
    Convention,
    ConventionError,
    Fact,
)
from topology.database import paging
from topology.models import Broker, ClientConvention, Role
from topology.operations.client_conventions import delete_convention, save_convention
from topology.redaction import Redaction
from topology.views.uploads import read_upload

REFUSED = "Nothing was changed."
MOST_GROUPS = 50


class Saved(NamedTuple):
    """`own` is None where this version cannot read it; the form may not show all of it."""

    row: ClientConvention
    own: Convention | None
    known_by: str
    can_be_edited: bool


@require_safe
@access.with_broker(Role.OPERATOR)
def client_conventions(request: HttpRequest, broker: Broker) -> HttpResponse:
    """The conventions, and a form for one; `edit` fills it with a saved one."""
    number = paging.row_number(request.GET.get("edit", ""))
    row = ClientConvention.objects.filter(broker=broker, retired_at=None, pk=number or 0).first()
    own = None if row is None else row.convention
    return _page(request, broker, ClientConventionForm(initial=make_values(own) if own else None))


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def client_convention_save(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Save what was typed; with `try` show what it reads in the messages of the `group`."""
    form = ClientConventionForm(request.POST)
    if not form.is_valid() or "try" in request.POST:
        return _page(request, broker, form)
    return _save(request, broker, form.text)


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def client_convention_delete(request: HttpRequest, broker: Broker) -> HttpResponse:
    name = request.POST.get("name", "")
    with show_refusal(request, REFUSED, ConventionError):
        delete_convention(request.user, broker, name)
        messages.success(request, f"“{name}” is deleted. Groups keep what it read.")
    return redirect("client_conventions", broker_slug=broker.slug)


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def client_convention_import(request: HttpRequest, broker: Broker) -> HttpResponse:
    file = read_upload(request, "")
    if file is None:
        return redirect("client_conventions", broker_slug=broker.slug)
    try:
        text = file.read(4 * MOST_CHARACTERS + 1).decode()
    except UnicodeDecodeError:
        messages.error(request, f"{REFUSED} The file is not UTF-8 text.")
        return redirect("client_conventions", broker_slug=broker.slug)
    return _save(request, broker, text)


@require_safe
@access.with_broker(Role.OPERATOR)
def client_convention_export(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    """The TOML of one, as it was saved."""
    row = get_object_or_404(ClientConvention, broker=broker, pk=pk, retired_at=None)
    answer = HttpResponse(row.text, content_type="application/toml; charset=utf-8")
    answer["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(row.name, safe='')}.toml"
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def _save(request: HttpRequest, broker: Broker, text: str) -> HttpResponse:
    with show_refusal(request, REFUSED, ConventionError):
        own = save_convention(request.user, broker, text)
        messages.success(
            request,
            f"“{own.name}” is saved. New replays use it now. "
            "Messages that are parked from now on are grouped by it.",
        )
    group = paging.row_number(request.POST.get("group", ""))
    if group is not None and MessageGroup.objects.filter(broker=broker, pk=group).exists():
        return redirect("message_group", broker.slug, group)
    return redirect("client_conventions", broker_slug=broker.slug)


def _page(request: HttpRequest, broker: Broker, form: ClientConventionForm) -> HttpResponse:
    sent = request.POST if request.method == "POST" else request.GET
    rows = ClientConvention.objects.filter(broker=broker, retired_at=None)
    number = paging.row_number(sent.get("group", ""))
    groups = MessageGroup.objects.filter(broker=broker, merged_into=None)
    group = groups.filter(pk=number).first() if number is not None else None
    rules = redaction.rules_for(request.user, broker)
    largest = list(groups.filter(parked__gt=0).order_by("-parked")[:MOST_GROUPS])
    if group is not None and group not in largest:
        largest.insert(0, group)
    context: dict[str, Any] = {
        "broker": broker,
        "rows": [_show_saved(row) for row in rows.select_related("saved_by")],
        "form": form,
        "forms": TEXT_FORMS,
        "groups": [seen_group(one, rules) for one in largest],
        "group": group,
    }
    if group is not None:
        context |= _try(request, group, form, rules)
    return render(request, "delayboard/client_conventions.html", context)


def _show_saved(row: ClientConvention) -> Saved:
    own = row.convention
    if own is None:
        return Saved(row, None, "", False)
    rows = (" and ".join(write_place(Fact(one, "text")) for one in each) for each in own.known_by)
    return Saved(row, own, " or ".join(rows), make_values(own) is not None)


def _try(
    request: HttpRequest, group: MessageGroup, form: ClientConventionForm, rules: Redaction
) -> dict[str, Any]:
    """What the form reads in the newest messages of the group, and the newest as it is."""
    newest = example(newest_of(group), rules)
    context: dict[str, Any] = {"example": newest}
    tried = []
    if form.is_bound and form.is_valid():
        known = snapshots.fresh(group.broker)
        tried = try_convention(group, form.convention, rules, known.snapshot)
        recognized = sum(one.is_recognized for one in tried)
        context |= {"tried": tried, "latest": known, "recognized": recognized}
    read = [one.row.pk for one in tried] or [newest.row.pk for newest in [newest] if newest]
    if read:
        what = ", ".join(map(str, read))
        audit.record(request.user, "parked message read", broker=group.broker, what=what)
    return context
