"""Checks messages against the broker, the options and the redirects of groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from analytics.events import clean
from delayboard.dead_letters.parked.failure import LONGEST
from delayboard.dead_letters.replay.batch.change_state import BatchError
from delayboard.dead_letters.replay.batch.items import CheckedTarget, FrozenItem
from delayboard.dead_letters.replay.batch.options import DEFAULTS, Options, find_target_problems
from delayboard.dead_letters.replay.batch.selection import SelectedMessage
from delayboard.dead_letters.replay.check.route_checker import (
    RouteChecker,
    Verdict,
    find_limited_queues,
    make_refused,
)
from delayboard.dead_letters.replay.check.targets import Destination, Target, Targets
from delayboard.models import ParkedMessage
from topology import snapshots
from topology.broker.failures import explain_timeout
from topology.broker.properties.read import read_properties
from topology.clients.conventions import Convention
from topology.clients.restart import explain_return
from topology.message import Properties
from topology.models import Broker
from topology.models.client_convention import read_conventions
from topology.operations.topology_rows import forwarders_at
from topology.snapshot import Snapshot

IMPOSSIBLE = "The origin that it records is not a valid name. Type where to send it."
ENVELOPE = (
    "The body is an envelope that {library} put around the message, and consumers do not expect "
    "it. Send the message inside the envelope."
)
CLOSED = "Delayboard cannot read the message inside the envelope of {library}."
DELETED = "The parked message was deleted."
# Seconds that a page waits for the broker, and the age up to which a snapshot counts as current.
PATIENCE_SECONDS = 2.7
YOUNG = timedelta(seconds=5)


class BrokerUnknown(BatchError):
    """The broker does not answer, so that nothing can be checked."""


class BrokerState(NamedTuple):
    """The state of a broker at this time (UTC)."""

    snapshot: Snapshot
    at: datetime

    @property
    def age_sentence(self) -> str:
        """As of when; "" for what was seen just now."""
        if datetime.now(UTC) - self.at <= YOUNG:
            return ""
        return f"Checked against the broker as of {self.at:%H:%M:%S} UTC."


def poll_broker(broker: Broker, *, is_late_good: bool = False) -> BrokerState:
    """A new snapshot of the broker, which may have changed a second ago, with its time.

    If `is_late_good`, a broker that does not answer in time is handed out as it was seen last.
    Raises BrokerUnknown.
    """
    asked_at = datetime.now(UTC)
    known = snapshots.latest(broker.pk)
    # A snapshot that another caller finished after this call began is new enough.
    if known is None or known.tried_at < asked_at:
        known = snapshots.poll(broker, PATIENCE_SECONDS)
    if known.snapshot is not None and not known.error:
        return BrokerState(known.snapshot, known.tried_at)
    if (
        known.snapshot is None
        or not is_late_good
        or known.error != str(explain_timeout(broker.address))
    ):
        raise BrokerUnknown(f"The messages cannot be checked: {known.error}")
    return BrokerState(known.snapshot, known.snapshot.taken_at)


class MessageChecker:
    """Checks the messages of one batch. Raises OptionError where the options fit none of them.

    `own` are the client conventions, by default those in force at the broker.
    """

    def __init__(
        self,
        broker: Broker,
        options: Options,
        snapshot: Snapshot,
        own: Sequence[Convention] | None = None,
    ) -> None:
        self._routes = RouteChecker(
            snapshot.definitions,
            snapshot.consumed,
            version=snapshot.version_tuple,
            forwarders=forwarders_at(broker),
            now_ms=time.time_ns() // 1_000_000,
            most_replays=options.most_replays,
            limited=find_limited_queues(snapshot),
        )
        self._own = read_conventions(broker) if own is None else own
        self._targets = Targets(broker, options, self._routes.index, self._own)
        self._include_repeats = options.include_repeats
        self._keeps_counters = options.keep_counters
        self._unwraps = options.unwraps

    def check_message(
        self, group: int | None, queue: str, raw: bytes | None, parked_message: int | None
    ) -> CheckedTarget:
        """A message of this group from this queue, `raw` its properties; None: it was deleted."""
        if raw is None:
            return _make_target(None, make_refused(DELETED))
        properties = read_properties(bytes(raw))

        def read_rest() -> tuple[bytes, str]:
            rows = ParkedMessage.objects.filter(pk=parked_message or 0)
            found = rows.values_list("body__data", "routing_key").first()
            return (bytes(found[0]), found[1]) if found else (b"", "")

        aim = self._targets.choose(properties.headers, group, read_rest)
        if self._unwraps and aim.inside is not None:
            properties, aim = aim.inside, aim._replace(envelope="")
        return self._check(aim, queue, properties)

    def check_rows(
        self, rows: Iterable[SelectedMessage | FrozenItem]
    ) -> list[CheckedTarget | None]:
        """The same of each of these; None for a possible repeat that is excluded."""
        return [
            None
            if row.is_repeat and not self._include_repeats
            else self.check_message(row.group, row.queue or "", row.properties, row.parked_message)
            for row in rows
        ]

    def check_queue(self, queue: str) -> CheckedTarget | None:
        """What lies in this queue, if all of it goes to one place; else None."""
        aim = self._targets.shared
        return None if aim is None else self._check(aim, queue, Properties())

    def _check(self, aim: Destination, queue: str, properties: Properties) -> CheckedTarget:
        target = aim.target
        if target is None:
            return _make_target(None, make_refused(aim.refusal))
        if find_target_problems(target.exchange, target.routing_key):
            return _make_target(None, make_refused(IMPOSSIBLE))
        verdict = self._routes.check(target, queue, properties, aim.route)
        returned = explain_return(properties.headers, self._own) if self._keeps_counters else ""
        if returned and verdict.is_good:
            verdict = replace(verdict, is_good=False, sentence=returned, ending="loops")
        elif aim.envelope and verdict.is_good:
            why = (CLOSED if self._unwraps else ENVELOPE).format(library=aim.envelope)
            verdict = replace(verdict, is_good=False, sentence=why, ending="envelope")
        return _make_target(target, verdict)


def check_default(row: ParkedMessage, snapshot: Snapshot) -> CheckedTarget:
    """The default target of one parked message."""
    checker = MessageChecker(row.broker, DEFAULTS, snapshot)
    return checker.check_message(row.group_id, row.queue, bytes(row.properties), row.pk)


def _make_target(target: Target | None, verdict: Verdict) -> CheckedTarget:
    exchange, key, why = (
        ("", "", "") if target is None else (target.exchange, target.routing_key, target.why)
    )
    return CheckedTarget(
        clean(exchange)[:LONGEST],
        clean(key)[:LONGEST],
        clean(why),
        clean(verdict.sentence),
        verdict.ending,
        verdict.is_good,
        verdict.after_ms,
    )
