"""Doing one replay in this process, or watching the worker do it, until it rests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

from django import db
from django.db import connection

from delayboard.dead_letters.replay import batch_state, make_draft, send_batch
from delayboard.models import ReplayBatch
from delayboard.models.background_task import REPLAYS, is_missing
from topology import work

CLAIM_SECONDS = 0.2
REPORT_SECONDS = 1.0
# Seconds in which what is in flight is settled and the work given back; a broker that hangs takes
# no longer.
JOIN_SECONDS = 20.0
RUNNERS: dict[str, Callable[..., None]] = {
    batch_state.KIND: send_batch.replay,
    batch_state.KIND_PREPARE: make_draft.prepare_draft,
}


def carry_out(
    batch: ReplayBatch, stop: Event, report: Callable[[ReplayBatch], None]
) -> ReplayBatch:
    """Run a batch until it is a draft, paused or ended, or until shortly after `stop` is set.

    Its work runs here in a thread unless a worker holds it. `report` is called about once a second.
    Raises the errors of the work.
    """
    raised: list[BaseException] = []
    is_over = Event()

    def act() -> None:
        try:
            _run_work(batch.pk, stop)
        except BaseException as error:
            raised.append(error)
        finally:
            is_over.set()
            connection.close()

    thread = Thread(target=act, name="replay", daemon=True)
    thread.start()
    while not is_over.wait(REPORT_SECONDS) and not stop.is_set():
        with suppress(db.Error):
            report(_reload(batch))
    thread.join(JOIN_SECONDS)
    if raised:
        raise raised[0]
    return _reload(batch)


def has_worker() -> bool:
    """Whether a worker runs that can continue the rest."""
    return not is_missing(REPLAYS)


def _run_work(key: int, stop: Event) -> None:
    owner = f"{work.name_process()} (command)"
    while not stop.is_set():
        try:
            batch = ReplayBatch.objects.select_related("work").get(pk=key)
            if batch_state.is_resting(batch):
                return
            claimed = work.claim_this(batch.work, owner) if batch.work else None
            if claimed is None:
                stop.wait(CLAIM_SECONDS)
            else:
                work.attempt(RUNNERS[claimed.kind], claimed, stop=stop)
        except db.Error:
            # Locked, full or away for a moment: what was begun is taken up again.
            connection.close()
            stop.wait(REPORT_SECONDS)


def _reload(batch: ReplayBatch) -> ReplayBatch:
    return ReplayBatch.objects.select_related("work", "broker").get(pk=batch.pk)
