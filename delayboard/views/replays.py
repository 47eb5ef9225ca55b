"""Replays: the list, a batch with its dry run and progress, start and cancel."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from delayboard.dead_letters.replay import batch as batches
from delayboard.models import Duty, ItemState, ReplayBatch
from topology import access, paging
from topology.models import Role

PAGE = 50


def with_batch(role: Role) -> Callable[[access.View], access.View]:
    def decorate(view: access.View) -> access.View:
        @wraps(view)
        def guarded(request: HttpRequest, pk: int) -> HttpResponse:
            rows = ReplayBatch.objects.select_related("broker", "work", "created_by")
            batch = get_object_or_404(rows, pk=pk)
            access.require(request.user, batch.broker, role)
            return view(request, batch)

        return guarded

    return decorate


@require_safe
def replays(request: HttpRequest) -> HttpResponse:
    visible = access.visible_brokers(request.user)
    rows = ReplayBatch.objects.filter(broker__in=visible).select_related("broker", "work")
    before = paging.row_number(request.GET.get("before", ""))
    if before is not None:
        rows = rows.filter(pk__lt=before)
    page = list(rows[: PAGE + 1])
    older = page[PAGE - 1].pk if len(page) > PAGE else None
    context = {"batches": page[:PAGE], "older": older, "before": before}
    return render(request, "delayboard/replays.html", context)


@require_safe
@with_batch(Role.VIEWER)
def replay_batch(request: HttpRequest, batch: ReplayBatch) -> HttpResponse:
    items = list(batch.items.all())
    counts = batch.counts()
    context = {
        "batch": batch,
        "broker": batch.broker,
        "items": items,
        "counts": [(state, state.label, counts[state]) for state in ItemState],
        "done": counts["done"],
        "not_done": len(items) - counts["done"],
        "bad": sum(1 for item in items if not item.verdict_is_good),
        "may_run": access.may(request.user, batch.broker, Role.OPERATOR),
        "worker_is_missing": all(duty.is_late for duty in Duty.objects.filter(key="replay")),
    }
    return render(request, "delayboard/replay_batch.html", context)


@require_POST
@with_batch(Role.OPERATOR)
def replay_start(request: HttpRequest, batch: ReplayBatch) -> HttpResponse:
    typed = request.POST.get("typed", "").strip().lower()
    try:
        batches.start(request.user, batch, despite_verdict=typed == "yes")
    except batches.BatchError as error:
        messages.error(request, f"Not started. {error}")
    return redirect("replay_batch", pk=batch.pk)


@require_POST
@with_batch(Role.OPERATOR)
def replay_cancel(request: HttpRequest, batch: ReplayBatch) -> HttpResponse:
    try:
        batches.cancel(request.user, batch)
    except batches.BatchError as error:
        messages.error(request, str(error))
    return redirect("replay_batch", pk=batch.pk)
