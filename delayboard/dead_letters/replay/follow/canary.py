"""The first few of a replay go ahead: how long they are watched, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from delayboard.dead_letters.replay.follow import observers, outcome
from delayboard.models import ItemState, ReplayBatch
from delayboard.models.replay import Order, ReplayOutcome
from topology import snapshots
from topology.broker.errors import BrokerError
from topology.delays import format_delay

# Time after their publish in which dead ones may be in a queue that is peeked now and then.
PEEKS_TAKE = outcome.PEEK_EVERY + outcome.SCENE_LASTS

Action = Literal["wait", "go on", "stop", "ask"]


@dataclass(frozen=True)
class CanaryResult:
    """The result of the first messages; `ask`: a user has to decide. `why` is a sentence."""

    action: Action
    why: str


def find_watch_end(batch: ReplayBatch, now: datetime) -> datetime:
    """Until when the first messages, published just now, are observed. Raises BrokerError.

    As long as the user typed, else one retry round of the target.
    """
    if batch.canary_seconds:
        return now + timedelta(seconds=batch.canary_seconds)
    scene = observers.make_scene(batch, snapshots.recent(batch.broker))
    return now + observers.estimate_round(batch, scene)


def check_canary(batch: ReplayBatch, now: datetime) -> CanaryResult:
    """Whether the rest may follow the first ones, which were published before `canary_until`."""
    first = _read_first(batch)
    number = len(first)
    died = sum(outcome == ReplayOutcome.DIED for _, outcome in first)
    if died:
        died_again = f"{died} of the first {number} were dead-lettered again."
        return CanaryResult("stop", f"The canary failed: {died_again}")
    unconfirmed = sum(state != ItemState.DONE for state, _ in first)
    if unconfirmed == number:
        return CanaryResult("ask", "The broker confirmed none of the first messages.")
    if batch.canary_until is not None and now < batch.canary_until:
        typed = timedelta(seconds=batch.canary_seconds)
        span = format_delay(typed) if typed else "one retry round of the target"
        sentence = (
            f"Delayboard observes the first {number} messages until "
            f"{batch.canary_until:%Y-%m-%d %H:%M:%S} UTC: {span}."
        )
        return CanaryResult("wait", sentence)
    quiet = f"No death of the first {number} was observed."
    if unconfirmed:
        why = f"The broker did not confirm {unconfirmed} of the first {number}."
        return CanaryResult("ask", why)
    if not batch.canary_goes_on:
        return CanaryResult("ask", f"{quiet} Resume the replay manually.")
    try:
        scene = observers.make_scene(batch, snapshots.recent(batch.broker))
    except BrokerError as error:
        return CanaryResult("ask", f"{quiet} Whether deaths are observed is not known: {error}")
    longest, typed = observers.estimate_round(batch, scene), timedelta(seconds=batch.canary_seconds)
    if typed and typed < longest:
        return CanaryResult(
            "ask",
            f"{quiet} The observation time of {format_delay(typed)} is shorter than one retry "
            f"round of the target, {format_delay(longest)}. Resume the replay manually.",
        )
    if blind := observers.explain_unobserved_deaths(batch, scene):
        return CanaryResult("ask", f"{quiet} {blind}")
    if (
        observers.find_peekable(batch.broker, scene)
        and now < (batch.canary_until or now) + PEEKS_TAKE
    ):
        return CanaryResult(
            "wait", f"{quiet} Delayboard peeks at the dead-letter queues once more."
        )
    return CanaryResult("go on", quiet)


def _read_first(batch: ReplayBatch) -> list[tuple[str, str]]:
    """The states and outcomes of the first that were sent; others may lie between them."""
    order = "-position" if batch.order == Order.NEWEST else "position"
    rows = batch.items.filter(attempts__gt=0).order_by(order)
    return list(rows.values_list("state", "outcome")[: batch.canary])
