"""What messages are judged by: the broker as it is seen, the options, the rules of groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from analytics.events import clean
from delayboard.dead_letters.parked.failure import LONGEST
from delayboard.dead_letters.replay.batch.change_state import BatchError
from delayboard.dead_letters.replay.batch.options import Options, target_problems
from delayboard.dead_letters.replay.batch.routes import Judged
from delayboard.dead_letters.replay.check.full_queues import Bound, bounds_of
from delayboard.dead_letters.replay.check.judge import Judge
from delayboard.dead_letters.replay.check.targets import Aim, Targets
from delayboard.dead_letters.replay.check.verdict import Target, Verdict, refused
from topology import latest
from topology.broker.management.refusals import late
from topology.broker.properties.read import read_properties
from topology.message import Properties
from topology.models import Broker
from topology.operations.topology_rows import waiters_at
from topology.routing.matching.index import Index
from topology.snapshot import Snapshot

IMPOSSIBLE = "What it tells of where it came from cannot be a name: type where to send it."
DELETED = "Its parked message was deleted from the journal."
# So long a page waits for the broker, and so old what it is judged by may be without a word.
PATIENCE_SECONDS = 2.7
YOUNG = timedelta(seconds=5)


class NotSeen(BatchError):
    """The broker does not answer, so that nothing can be judged."""


class Seen(NamedTuple):
    """A broker as it stood at that time (UTC)."""

    snapshot: Snapshot
    at: datetime

    @property
    def age_said(self) -> str:
        """As of when; "" for what was seen just now."""
        if datetime.now(UTC) - self.at <= YOUNG:
            return ""
        return f"Judged by the broker as of {self.at:%H:%M:%S} UTC."


class Looked(NamedTuple):
    """`enters` is that of the Verdict."""

    judged: Judged
    enters: tuple[tuple[str, bool], ...] = ()


def seen(broker: Broker) -> Snapshot:
    """The broker as it is now, asked anew: it may have been changed a second ago.

    Raises NotSeen.
    """
    return look_anew(broker).snapshot


def look_anew(broker: Broker, *, is_late_good: bool = False) -> Seen:
    """The same with its time; if `is_late_good`, a broker that does not answer in time is handed
    out as it was seen last. Raises NotSeen.
    """
    asked_at = datetime.now(UTC)
    known = latest.latest(broker.pk)
    # A look that ended after this was asked is as good.
    if known is None or known.tried_at < asked_at:
        known = latest.poll(broker, PATIENCE_SECONDS)
    if known.snapshot is not None and not known.error:
        return Seen(known.snapshot, known.tried_at)
    if known.snapshot is None or not is_late_good or known.error != str(late(broker.address)):
        raise NotSeen(f"What would become of the messages is not known: {known.error}")
    return Seen(known.snapshot, known.snapshot.taken_at)


class Desk:
    """Judges the messages of one batch. Raises OptionError where the options fit none of them."""

    def __init__(self, broker: Broker, options: Options, snapshot: Snapshot) -> None:
        self.bounds: Mapping[str, Bound] = bounds_of(snapshot)
        self._judge = Judge(
            snapshot.definitions,
            snapshot.consumed,
            version=snapshot.version_tuple,
            waiters=waiters_at(broker),
            now_ms=time.time_ns() // 1_000_000,
            most_replays=options.most_replays,
        )
        self._targets = Targets(broker, options, self._judge.index)
        self._include_repeats = options.include_repeats

    @property
    def index(self) -> Index:
        return self._judge.index

    def parked_message(self, group: int | None, queue: str, raw: bytes | None) -> Judged:
        """A message of this group from this queue, `raw` its properties; None: it was deleted."""
        return self.look(group, queue, raw).judged

    def item(
        self, group: int | None, queue: str, raw: bytes | None, *, is_repeat: bool
    ) -> Judged | None:
        """The same of an item of the batch; None for a repeat that is excluded."""
        if is_repeat and not self._include_repeats:
            return None
        return self.parked_message(group, queue, raw)

    def look(self, group: int | None, queue: str, raw: bytes | None) -> Looked:
        """The same, with the queues that it gets into."""
        if raw is None:
            return Looked(_told(None, refused(DELETED)))
        properties = read_properties(bytes(raw))
        aim = self._targets.of(properties.headers, group)
        return self._looked(aim, queue, properties)

    def all_of(self, queue: str) -> Judged | None:
        """What lies in this queue, if all of it goes to one place; else None."""
        found = self.look_at_all(queue)
        return None if found is None else found.judged

    def look_at_all(self, queue: str) -> Looked | None:
        aim = self._targets.common
        return None if aim is None else self._looked(aim, queue, Properties())

    def _looked(self, aim: Aim, queue: str, properties: Properties) -> Looked:
        target = aim.target
        if target is None:
            return Looked(_told(None, refused(aim.refusal)))
        if target_problems(target.exchange, target.routing_key):
            return Looked(_told(None, refused(IMPOSSIBLE)))
        verdict = self._judge.judge(target, queue, properties, aim.way)
        return Looked(_told(target, verdict), verdict.enters)


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
