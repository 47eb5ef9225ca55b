"""What letters are judged by: the broker as it is seen, the options, the rules of groups."""

from __future__ import annotations

import time
from typing import NamedTuple

from analytics.events import clean
from delayboard.dead_letters.failure import LONGEST
from delayboard.dead_letters.replay.batch import BatchError
from delayboard.dead_letters.replay.judging import Judge
from delayboard.dead_letters.replay.options import Options, target_problems
from delayboard.dead_letters.replay.target import Aim, Targets
from delayboard.dead_letters.replay.verdict import Target, Verdict, refused
from topology import latest
from topology.broker.properties import read_properties
from topology.message import Properties
from topology.models import Broker
from topology.rows import waiters_at
from topology.snapshot import Snapshot

IMPOSSIBLE = "What it tells of where it came from cannot be a name: type where to send it."
DELETED = "Its letter was deleted from the journal."


class NotSeen(BatchError):
    """The broker does not answer, so that nothing can be judged."""


class Judged(NamedTuple):
    """A target with what the dry run says of it: the columns of a ReplayRoute.

    Both names are empty where there is no target.
    """

    exchange: str
    routing_key: str
    why: str
    verdict: str
    ending: str
    is_good: bool
    after_ms: int

    @property
    def has_target(self) -> bool:
        return bool(self.exchange or self.routing_key)


def seen(broker: Broker) -> Snapshot:
    """The broker as it is now. Raises NotSeen."""
    known = latest.fresh(broker)
    if known.snapshot is None or known.error:
        raise NotSeen(f"What would become of the messages is not known: {known.error}")
    return known.snapshot


class Desk:
    """Judges the letters of one batch. Raises OptionError where the options fit none of them."""

    def __init__(self, broker: Broker, options: Options, snapshot: Snapshot) -> None:
        self._judge = Judge(
            snapshot.definitions,
            snapshot.consumed,
            version=snapshot.version_tuple,
            waiters=waiters_at(broker),
            now_ms=time.time_ns() // 1_000_000,
            most_replays=options.most_replays,
        )
        self._targets = Targets(broker, options, self._judge.index)

    def letter(self, group: int | None, queue: str, raw: bytes | None) -> Judged:
        """A letter of this group that lay in this queue, `raw` its properties; None: it is gone."""
        if raw is None:
            return _told(None, refused(DELETED))
        properties = read_properties(bytes(raw))
        aim = self._targets.of(properties.headers, group)
        return self._judged(aim, queue, properties)

    def all_of(self, queue: str) -> Judged | None:
        """What lies in this queue, if all of it goes to one place; else None."""
        aim = self._targets.common
        return None if aim is None else self._judged(aim, queue, Properties())

    def _judged(self, aim: Aim, queue: str, properties: Properties) -> Judged:
        target = aim.target
        if target is None:
            return _told(None, refused(aim.refusal))
        if target_problems(target.exchange, target.routing_key):
            return _told(None, refused(IMPOSSIBLE))
        return _told(target, self._judge.judge(target, queue, properties, aim.way))


def _told(target: Target | None, verdict: Verdict) -> Judged:
    exchange, key, why = (
        ("", "", "") if target is None else (target.exchange, target.routing_key, target.why)
    )
    return Judged(
        clean(exchange)[:LONGEST],
        clean(key)[:LONGEST],
        clean(why),
        clean(verdict.sentence),
        verdict.ending,
        verdict.is_good,
        verdict.after_ms,
    )
