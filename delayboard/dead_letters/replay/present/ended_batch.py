"""What a replay's page shows of messages that were not replayed, or may have been sent twice, and
of a worker without a heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count

from delayboard.dead_letters.replay.batch import claims
from delayboard.dead_letters.replay.present.items_page import Other, find_other_replays
from delayboard.models import BatchState, ItemState, ReplayBatch
from delayboard.models.background_task import REPLAYS, is_missing
from delayboard.models.replay import Source
from topology.graph.live_values import make_version
from topology.work import LEASE

# So many reasons are listed one by one; the others are counted.
REASONS = 10
# A worker renews its lease every few seconds. One that did not for so long may be dead.
SILENT_AFTER = timedelta(seconds=8)
BESIDE = "the reason is listed with each below"


@dataclass(frozen=True)
class Unavailable:
    """Messages that were not available. `why` continues after the name of `replay`, if any."""

    number: int
    why: str
    replay: int | None = None


@dataclass(frozen=True)
class Rest:
    """Those of a replay of parked messages that were not replayed: `kept` ones are there as before.

    Possible repeats that were excluded are none of them.
    """

    kept: int
    left_out: tuple[Unavailable, ...]


@dataclass(frozen=True)
class Twice:
    """How many were published a second time: `refused` ones because the broker closed the channel
    over them, the `others` because something broke off.
    """

    refused: int
    others: int


@dataclass(frozen=True)
class Silence:
    """The worker was last heard of so many `seconds` ago; another may take over from `until`."""

    seconds: int
    until: datetime
    is_over: bool


def count_rest(batch: ReplayBatch) -> Rest:
    """Counts the items of the batch, if it did not replay all of them."""
    found = _count_unavailable(batch) if batch.cancelled else []
    gone = (
        batch.items.filter(state=ItemState.FAILED, parked_message=None).count()
        if batch.failed
        else 0
    )
    if gone:
        found.append(Unavailable(gone, _choose_form(gone, "it was", "they were") + " deleted"))
    kept = batch.to_send - batch.done - sum(one.number for one in found)
    return Rest(max(0, kept), tuple(found))


def explain_state(batch: ReplayBatch) -> str:
    """The reason of its state, without what `rest` contains."""
    is_told = batch.source == Source.PARKED and batch.state == BatchState.DONE
    return (
        "" if is_told and batch.state_why == claims.describe_unavailable(batch) else batch.state_why
    )


def count_twice(batch: ReplayBatch) -> Twice:
    if not batch.doubled:
        return Twice(0, 0)
    refused = batch.items.filter(may_be_duplicated=True, state=ItemState.FAILED, attempts=1)
    number = refused.count() if batch.failed else 0
    return Twice(number, max(0, batch.doubled - number))


def find_silence(batch: ReplayBatch, now: datetime) -> Silence | None:
    """None while nobody works at it, and while who does is heard of."""
    if batch.is_ended or batch.work is None or batch.work.leased_until_at is None:
        return None
    until = batch.work.leased_until_at
    silent = now - (until - LEASE)
    if batch.work.is_ended or silent < SILENT_AFTER:
        return None
    return Silence(int(silent.total_seconds()), until, until <= now)


def make_page_version(batch: ReplayBatch, now: datetime) -> str:
    """Changes when a replay's page lists other messages or warns of something else."""
    silence = find_silence(batch, now)
    warnings = (is_missing(REPLAYS), silence and (silence.until, silence.is_over))
    outcomes = (batch.doubled, batch.delivered, batch.died)
    counts = tuple(batch.counts().values())
    return make_version(str(batch.state), counts, outcomes, warnings)


def _count_unavailable(batch: ReplayBatch) -> list[Unavailable]:
    """The most frequent reason first."""
    rows = batch.items.filter(state=ItemState.CANCELLED)
    rows = rows.exclude(error__in=("", claims.MAYBE_PUBLISHED)).order_by()
    counted = rows.values_list("error").annotate(number=Count("pk")).order_by("-number", "error")
    found = list(counted)
    known = find_other_replays(batch, [error for error, _ in found[:REASONS]])
    unavailable = [
        _describe_unavailable(error, number, known.get(error)) for error, number in found[:REASONS]
    ]
    if further := sum(number for _, number in found[REASONS:]):
        unavailable.append(Unavailable(further, BESIDE))
    return unavailable


def _describe_unavailable(error: str, number: int, other: Other | None) -> Unavailable:
    them = _choose_form(number, "it", "them")
    if other is not None:
        had = f"had replayed {them} already" if other.was_replayed else f"had {them}"
        if other.is_known:
            return Unavailable(number, had, other.replay)
        return Unavailable(number, f"replay {other.replay} {had}")
    were = _choose_form(number, "it was", "they were")
    match error:
        case claims.DISCARDED:
            return Unavailable(number, f"{were} discarded")
        case claims.DELETED:
            return Unavailable(number, f"{were} deleted")
    return Unavailable(number, BESIDE)


def _choose_form(number: int, one: str, many: str) -> str:
    return one if number == 1 else many
