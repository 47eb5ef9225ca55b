"""The history of a message as steps in time: what is known, and what is only inferred; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from analytics.recorder.copies import published
from analytics.scheduled.pages.lines import SOURCES
from topology.deaths import Death, History, newest_death
from topology.message import Message

Kind = Literal["start", "death", "again", "now", "end"]
_FIRST = datetime.min.replace(tzinfo=UTC)
# The name of a URL and its arguments.
Page: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Step:
    """One event. `at` is None when its time is unknown.

    `what` is one or two words, `place` its queue or exchange, `detail` a sentence on the evidence.
    `page` is about the event.
    """

    kind: Kind
    what: str
    place: str = ""
    at: datetime | None = None
    detail: str = ""
    death: Death | None = None
    is_inferred: bool = False
    page: Page = ()

    @property
    def mark(self) -> str:
        """What its sign on the line looks like: a death like its reason."""
        return self.death.reason if self.death else self.kind


def build_history(
    message: Message, history: History, then: Sequence[Step] = ()
) -> tuple[Step, ...]:
    """From its publication to where it lies, and what was done with it `then`, in order."""
    deaths = [Step("death", d.reason, d.queue, d.first_at, death=d) for d in history.deaths]
    latest = _latest(message, history)
    steps = [_publication(message, history), *deaths, *([latest] if latest else []), *then]
    return _sort_by_time(steps)


def _sort_by_time(steps: Sequence[Step]) -> tuple[Step, ...]:
    """To the second, as x-death and the page have it; one without a time follows the one before."""
    known, moments = _FIRST, []
    for step in steps:
        known = step.at.replace(microsecond=0) if step.at else known
        moments.append(known)
    places = sorted(range(len(steps)), key=lambda place: moments[place])
    return tuple(steps[place] for place in places)


def _publication(message: Message, history: History) -> Step:
    first = next(iter(history.deaths), None)
    place = first.exchange if first else message.exchange
    at, source = published(message, recorded_at=None)
    sentence = (
        f"The time is from {SOURCES.get(source, source)}." if at else "The time is not recorded."
    )
    if first and first.order_is_inferred:
        sentence += " The exchange is inferred from the order of the deaths."
    return Step("start", "published", place, at, sentence, is_inferred=at is None)


def _latest(message: Message, history: History) -> Step | None:
    """The last death of all, where it was not the first of its kind: its time is not kept."""
    newest = newest_death(message.headers)
    if newest is None or not history.deaths or history.total == len(history.deaths):
        return None
    queue, reason = newest
    if not history.count(queue, reason) > 1:
        return None
    after = max((d.first_at for d in history.deaths if d.first_at), default=None)
    sentence = "x-death keeps only the time of the first round."
    if after:
        sentence = f"Not before {after:%Y-%m-%d %H:%M:%S} UTC: {sentence[0].lower()}{sentence[1:]}"
    is_recorded = "x-last-death-queue" in message.headers
    return Step("again", f"last {reason}", queue, None, sentence, is_inferred=not is_recorded)
