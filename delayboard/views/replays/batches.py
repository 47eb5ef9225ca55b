"""Replays: the list, a batch as it is, and what is done with one that was started."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from delayboard.dead_letters.parked.redact_cause import hides_history
from delayboard.dead_letters.replay import batch_state, observers, outcome, summary
from delayboard.dead_letters.replay.content import read_resets
from delayboard.dead_letters.replay.edit_message import SentDiff, diff_first
from delayboard.dead_letters.replay.summary import describe_pace
from delayboard.models import BatchState, ItemState, ReplayBatch
from delayboard.models.background_task import REPLAYS, is_missing
from delayboard.models.replay import ENDED_BATCH
from delayboard.views.replays.options import options_of, plan_of
from delayboard.views.show_refusal import show_refusal
from topology import access, audit, redaction, snapshots
from topology.database import paging
from topology.models import Role
from topology.redaction import Redaction
from topology.snapshots import Latest
from topology.views.sorting import read_sort

PAGE = 50
# Columns with the thousands of ids of a selection, which no page shows.
LONG = ("parked_messages", "parking__handles")


def with_batch(role: Role, *, changes: bool = True) -> Callable[[access.View], access.View]:
    def decorate(view: access.View) -> access.View:
        @wraps(view)
        def guarded(request: HttpRequest, pk: int, **more: Any) -> HttpResponse:
            people = ("created_by", "started_by", "requested_by", "approved_by")
            related = ("broker", "work", *people, "topology", "parking__work")
            rows = ReplayBatch.objects.select_related(*related).defer(*LONG)
            batch = get_object_or_404(rows, pk=pk)
            access.require(request.user, batch.broker, role, request=request if changes else None)
            return view(request, batch, **more)

        return guarded

    return decorate


@require_safe
def replays(request: HttpRequest) -> HttpResponse:
    """The newest first, or the oldest; with `open=1` those alone that have not ended."""
    choice = access.choose_brokers(request)
    rows = ReplayBatch.objects.filter(broker__in=choice.shown)
    is_open = request.GET.get("open") == "1"
    opened = rows.exclude(state__in=ENDED_BATCH)
    totals = {"total": rows.count(), "open_total": opened.count()}
    if is_open:
        rows = opened
    related = ("broker", "work", "created_by", "group")
    sort = read_sort(request, ("prepared",), "-prepared")
    rows = rows.select_related(*related).defer("parked_messages")
    order = "pk" if sort == "prepared" else "-pk"
    page = paging.read_page(rows, request.GET.get("after", ""), PAGE, order)
    context = {
        "broker": choice.chosen,
        "batches": summary.make_lines(request.user, page.rows),
        "page": page,
        "sort": sort,
        "is_open": is_open,
        **totals,
    }
    return render(request, "delayboard/replays.html", context)


@require_safe
@with_batch(Role.VIEWER)
def replay_batch(request: HttpRequest, batch: ReplayBatch) -> HttpResponse:
    """A batch in whatever state it is; a draft is the dry run, with its options to be changed."""
    return batch_page(request, batch)


def batch_page(request: HttpRequest, batch: ReplayBatch, **more: Any) -> HttpResponse:
    """The page of a batch; `more` overrides its context."""
    rules = redaction.rules_for(request.user, batch.broker)
    now, known = timezone.now(), snapshots.fresh(batch.broker)
    hides = summary.hides_targets(batch, rules)
    context: dict[str, Any] = {
        "batch": batch,
        "latest": known,
        "description": summary.describe_selection(batch, rules),
        "broker": batch.broker,
        "counts": _counts(batch),
        "sent": batch.settled - batch.cancelled,
        "pace": describe_pace(batch, now),
        "progress": summary.make_progress_bar(batch),
        "may_run": access.may(request.user, batch.broker, Role.OPERATOR),
        "worker_is_missing": is_missing(REPLAYS),
        "undo_is_over": batch.publish_at is not None and batch.publish_at <= now,
        # The subject is over when the batch is in another state; a batch at rest has none.
        "live": "" if batch.is_ended or batch.is_draft else f"{batch.pk}-{batch.state}",
        "live_version": summary.make_page_version(batch),
        "hides_targets": hides,
    }
    if batch.state != BatchState.PREPARING:
        context |= _items(request, batch, hides=hides)
        context |= _seen(batch, known, hides=hides)
    if batch.is_draft:
        context["options"] = options_of(batch)
        context["resets"] = read_resets(batch, rules)
        if context["may_run"]:
            context["diff"] = _diff(request, batch, rules, hides=hides)
    else:
        context |= {
            "failures": summary.read_failures(batch, rules),
            "failed": batch.died + batch.remaining,
            "hides_history": hides_history(rules),
        }
    context |= more
    if batch.is_draft:
        values = context["options"]["values"]
        watch = context.get("longest_round", timedelta(0))
        asked = request.POST.get("plan", request.GET.get("plan", ""))
        context["plan"] = plan_of(batch, values, watch, now, asked)
        context["approves"] = batch_state.name_request(batch)
        context["is_own_request"] = batch.requested_by_id == request.user.pk
    return render(request, "delayboard/replay_batch.html", context)


def _diff(
    request: HttpRequest, batch: ReplayBatch, rules: Redaction, *, hides: bool
) -> SentDiff | None:
    """What leaves of the first message; it shows parts of this message."""
    diff = diff_first(batch, rules, hides_targets=hides)
    if diff is not None:
        what = f"{diff.item.parked_message_id} of replay {batch.pk}"
        audit.record(request.user, "parked message read", broker=batch.broker, what=what)
    return diff


def _seen(batch: ReplayBatch, known: Latest, *, hides: bool) -> dict[str, Any]:
    """What was seen of those that were replayed, and what nobody sees of them.

    And of a draft how long the first ones are watched at least, as far as the broker is known.
    """
    is_asked = batch.is_draft or batch.published > 0
    needs = batch.is_draft or (is_asked and (batch.is_ended or not hides))
    scene = observers.make_scene(batch, known.snapshot) if known.snapshot and needs else None
    found: dict[str, Any] = {}
    if batch.is_draft:
        found["longest_round"] = observers.estimate_round(batch, scene) if scene else timedelta(0)
    found["unobserved"] = (
        outcome.explain_unobserved_in(batch, scene, known) if is_asked and not hides else ""
    )
    if not batch.is_ended:
        return found
    after = outcome.count_outcomes(batch)
    is_over = batch.followed_to is not None and batch.followed_to > batch.state_at
    return found | {
        "after": after,
        "after_bar": summary.make_outcome_bar(after),
        "is_followed": not is_over,
        "followed_until": outcome.find_follow_end(batch, scene) if scene and not is_over else None,
    }


def _counts(batch: ReplayBatch) -> list[tuple[str, str, int]]:
    labels = {str(state): str(state.label) for state in ItemState}
    counts = batch.counts()
    if not batch.excluded:
        # Nothing is excluded after the start.
        del counts[ItemState.EXCLUDED]
    return [(state, labels[state], number) for state, number in counts.items()]


def _items(request: HttpRequest, batch: ReplayBatch, *, hides: bool) -> dict[str, Any]:
    shown = request.GET.get("show", "")
    item_filter = summary.ItemFilter(
        shown if shown in summary.SHOWN else "",
        paging.row_number(request.GET.get("route", "")),
    )
    dry = summary.summarize_dry_run(batch)
    found: dict[str, Any] = {
        "dry": dry,
        "no_longer_free": summary.count_taken(batch),
        "died_before": summary.count_died_before(batch) if batch.is_draft else 0,
    }
    routes = [summary.redact_route(route) for route in dry.routes] if hides else dry.routes
    found["verdicts"] = summary.fold_routes(routes)
    items = summary.read_page(batch, item_filter, request.GET.get("after", ""))
    if hides:
        for item in items.rows:
            route = item.route
            item.route = summary.redact_route(route) if route else None
    shows = summary.list_filters(batch, dry.bad, item_filter.shown)
    return found | {"item_filter": item_filter, "items": items, "shows": shows}


def _make_action(
    do: Callable[[Any, ReplayBatch], None], *, changes: bool = False
) -> Callable[..., HttpResponse]:
    @require_POST
    @with_batch(Role.OPERATOR, changes=changes)
    def act(request: HttpRequest, batch: ReplayBatch) -> HttpResponse:
        with show_refusal(request, "", batch_state.BatchError):
            do(request.user, batch)
        return redirect("replay_batch", pk=batch.pk)

    return act


replay_pause = _make_action(batch_state.pause)
replay_resume = _make_action(batch_state.resume, changes=True)
replay_cancel = _make_action(batch_state.cancel)
