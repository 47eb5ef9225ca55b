"""A group of dead letters: what it is, and what people write about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from delayboard.dead_letters.parked import groups
from delayboard.dead_letters.parked.edit_groups import (
    MOST_MERGED,
    MergeError,
    NoteError,
    find_owners,
    merge_groups,
    restore_groups,
    write_note,
)
from delayboard.dead_letters.parked.redact_cause import hides_history, seen_group
from delayboard.dead_letters.presentation import example
from delayboard.dead_letters.replay.targets import UNKNOWN_TARGET
from delayboard.dead_letters.replay.verdicts import check_default
from delayboard.models import MessageGroup
from delayboard.models.replay import Order
from delayboard.views.show_refusal import show_refusal
from topology import access, redaction, snapshots
from topology.content.text import count_of
from topology.database import paging
from topology.models import Broker, Role
from topology.redaction import Redaction


@require_safe
@access.with_broker(Role.VIEWER)
def message_group(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    """All that its messages have in common, when they died, and what people wrote."""
    group = _group(broker, pk)
    if group.merged_into_id is not None:
        return redirect("message_group", broker.slug, group.merged_into_id)
    by = request.GET.get("by", "")
    by = by if by in groups.BARS else groups.choose_bars(group, datetime.now(UTC))
    span = groups.BARS[by]
    rules = redaction.rules_for(request.user, broker)
    newest = groups.newest_of(group)
    may_operate = access.may(request.user, broker, Role.OPERATOR)
    trend = groups.trends([group], span, datetime.now(UTC))[group.pk]
    counted = groups.with_merged_counts([group])[0]
    context = {
        "broker": broker,
        "group": seen_group(counted, rules),
        "by_state": groups.count_states(counted),
        "orders": Order.choices,
        "merged": [seen_group(one, rules) for one in group.merged.order_by("pk")],
        "by": by,
        "bars": groups.BARS,
        "trend": trend,
        "has_earlier": groups.has_earlier(group, trend),
        "may_operate": may_operate,
        "owners": find_owners(broker),
        "newest": newest,
        "example": example(newest, rules) if may_operate else None,
        **_target(counted, rules),
    }
    return render(request, "delayboard/message_group.html", context)


def _target(group: MessageGroup, rules: Redaction) -> dict[str, Any]:
    """Where a replay sends the newest parked message, `no_target` why it cannot send it.

    Without a broker's answer the origin that the group recorded decides.
    """
    row = groups.newest_parked(group)
    if row is None or hides_history(rules):
        return {}
    snapshot = snapshots.fresh(row.broker).snapshot
    if snapshot is None:
        stated = group.died_in or group.exchange or group.routing_key
        is_known = stated or hasattr(group, "redirect")
        return {"no_target": "" if is_known else UNKNOWN_TARGET}
    target = check_default(row, snapshot)
    if target.has_target:
        return {"target": target}
    return {"no_target": target.verdict, "is_origin_unknown": target.verdict == UNKNOWN_TARGET}


@require_POST
@access.with_broker(Role.OPERATOR)
def message_group_edit(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    """The note, the owner (an account's name, "" for nobody) and the link of a group."""
    group = _group(broker, pk)
    values = {name: request.POST.get(name, "") for name in ("note", "owner", "link")}
    with show_refusal(request, "Nothing was saved.", NoteError):
        write_note(request.user, group, **values)
        messages.success(request, "Notes saved.")
    return redirect("message_group", broker.slug, group.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@access.with_broker(Role.OPERATOR)
def merge_message_groups(request: HttpRequest, broker: Broker) -> HttpResponse:
    """The chosen groups (`group`), and the one that stays; a POST merges them."""
    sent = request.POST if request.method == "POST" else request.GET
    keys = [key for text in sent.getlist("group") if (key := paging.row_number(text)) is not None]
    if request.method == "POST":
        into = paging.row_number(sent.get("into", "")) or 0
        with show_refusal(request, "Nothing was merged.", MergeError):
            group = merge_groups(request.user, broker, keys, into, sent.get("name", ""))
            messages.success(request, f"Merged {len({*keys, into})} groups.")
            return redirect("message_group", broker.slug, group.pk)
    rows = MessageGroup.objects.filter(broker=broker, pk__in=keys[: MOST_MERGED + 1])
    found = groups.with_merged_counts(list(rows.filter(merged_into=None).select_related("owner")))
    found.sort(key=lambda one: -one.parked)
    rules = redaction.rules_for(request.user, broker)
    context = {"broker": broker, "groups": [seen_group(one, rules) for one in found]}
    return render(request, "delayboard/message_groups_merge.html", context)


@require_POST
@access.with_broker(Role.OPERATOR)
def undo_merge(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    group = _group(broker, pk)
    with show_refusal(request, "Nothing was undone.", MergeError):
        number = restore_groups(request.user, group)
        messages.success(request, f"Restored {count_of(number, 'merged group')}.")
    return redirect("message_group", broker.slug, group.pk)


def _group(broker: Broker, pk: int) -> MessageGroup:
    rows = MessageGroup.objects.select_related("owner")
    return get_object_or_404(rows, broker=broker, pk=pk)
