"""A waiting message as a person reads it: how late, how far on its way, who published it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from analytics.buckets import OVERDUE_AFTER
from analytics.models import ScheduledBody, ScheduledMessage
from analytics.models.scheduled_message import LEFT, NOT_OBSERVED
from analytics.observation import StuckRange, stuck_ranges, unobserved
from topology.clients.describe import Description, describe
from topology.content.bodies import Body, show_body, unpack
from topology.content.text import make_encodable
from topology.delays import format_span
from topology.message import PUBLISHED_AT_HEADER
from topology.patterns.pattern import ParamsError
from topology.redaction import HIDDEN, NOTHING, Redaction, hides_fact

STAMPED = "delayboard"
# Source of a publish time -> its text: header, our stamp in a header, recorder.
SOURCES = {
    STAMPED: "Delayboard’s timestamp",
    "NServiceBus.Retries.Timestamp": "the header NServiceBus.Retries.Timestamp",
    "timestamp_in_ms": "the header timestamp_in_ms",
    "NServiceBus.TimeSent": "the header NServiceBus.TimeSent",
    "recorded": "time of recording",
    "timestamp": "the AMQP timestamp, in whole seconds",
}


@dataclass(frozen=True)
class ScheduledLine:
    """`hops` is how many waits its delay consists of, `remaining_hops` how many are not over.

    None when unknown. `overdue_by` is None while it is not overdue. `is_stuck`: it is due, and
    RabbitMQ keeps it because it cannot route it. `is_unobserved`: it is due, and its delivery is
    not observed. `hidden` are the redacted parts of messages of its broker: values
    derived from a redacted header are redacted too.
    """

    row: ScheduledMessage
    overdue_by: timedelta | None
    hops: int | None
    remaining_hops: int | None
    hidden: Redaction = NOTHING
    is_stuck: bool = False
    is_unobserved: bool = False

    @property
    def is_masked(self) -> bool:
        """Whether there is a rule that hides something from the reader."""
        return not self.hidden.is_empty

    @property
    def hides_something(self) -> bool:
        """Whether a header of it, or what is derived from one, is hidden from the reader."""
        if not self.is_masked:
            return False
        read: dict[str, Any] = json.loads(self.row.headers_json)
        is_derived = self.hides_published_at or self.published_by != self.row.published_by
        return is_derived or self.headers != read

    @property
    def headers(self) -> dict[str, Any]:
        """The headers as they were recorded, with HIDDEN in the place of what is hidden."""
        return self.hidden.headers(json.loads(self.row.headers_json))

    @property
    def hides_published_at(self) -> bool:
        source = self.row.published_at_source
        header = PUBLISHED_AT_HEADER if source == STAMPED else source
        return bool(self.row.published_at) and self.hidden.hides_header(header)

    @property
    def published_at(self) -> datetime | None:
        """None also when the header with the time is redacted."""
        return None if self.hides_published_at else self.row.published_at

    @property
    def published_by(self) -> str:
        """HIDDEN when a header that may contain it is redacted; "" when unknown."""
        by = self.row.published_by
        return HIDDEN if by and hides_fact(self.hidden, "publisher") else by

    @cached_property
    def client(self) -> Description | None:
        """What its client library wrote into its headers, as far as the reader may see it."""
        return describe(self.headers, routing_key=self.row.routing_key)

    @property
    def message_type(self) -> str:
        """The type or task that its headers state; "" when they do not."""
        return (self.client and self.client.message_type) or ""

    @property
    def is_overdue(self) -> bool:
        return self.overdue_by is not None

    @property
    def state(self) -> str:
        """ "stuck", "overdue", NOT_OBSERVED, LEFT or "waiting"."""
        if self.is_stuck:
            return "stuck"
        if self.is_overdue:
            return "overdue"
        if self.is_unobserved:
            return NOT_OBSERVED
        return "waiting" if self.row.left_at is None else LEFT

    @property
    def overdue_words(self) -> str:
        """How much; "" while it is not overdue."""
        by = self.overdue_by
        return format_span(by) if by else ""

    @property
    def published_source(self) -> str:
        """Where the time of its publication is from, in words; "" when it is not known."""
        return SOURCES.get(self.row.published_at_source, self.row.published_at_source)

    @property
    def name(self) -> str:
        """The message id, else the id of its library, else the beginning of its content's hash."""
        stated = self.client and self.client.message_id
        known = "" if stated == HIDDEN else stated
        return self.row.message_id or known or f"{self.row.content_id[:12]}…"


class Reader:
    """Reads rows; each topology's parameters are parsed once.

    `hidden` has the redaction rules by broker for the reader; None redacts nothing. `not_observed`
    are the topologies without observed deliveries, and `stuck` the stuck messages, if the caller
    has them.
    """

    def __init__(
        self,
        hidden: Mapping[int, Redaction] | None,
        not_observed: Collection[int] | None = None,
        stuck: Collection[StuckRange] | None = None,
    ) -> None:
        self._hidden = hidden
        self._params: dict[int, Any] = {}
        if not_observed is None:
            not_observed = [one.pk for one in unobserved()]
        self._not_observed = set(not_observed)
        self._stuck = stuck_ranges() if stuck is None else stuck

    def line(self, row: ScheduledMessage, now: datetime) -> ScheduledLine:
        """The row in its current state."""
        waits = self.find_waits(row)
        is_seen = (row.topology_id or 0) not in self._not_observed
        by, is_left = row.overdue_by(now), row.left_at is not None
        is_stuck = bool(by) and any(
            one.holds(row.topology_id, row.destination, row.due_at) for one in self._stuck
        )
        return ScheduledLine(
            row=row,
            overdue_by=by if by > OVERDUE_AFTER and (is_seen or is_stuck) else None,
            hops=None if waits is None else len(waits),
            remaining_hops=None
            if waits is None
            else _count_remaining(waits, row.entered_at or now, now),
            hidden=NOTHING if self._hidden is None else self._hidden[row.broker_id],
            is_stuck=is_stuck,
            is_unobserved=not is_seen if by else is_left and row.ending == NOT_OBSERVED,
        )

    def find_waits(self, row: ScheduledMessage) -> Sequence[timedelta] | None:
        """The waits that its delay consists of; None when unknown."""
        topology = row.topology
        if topology is None:
            return None
        try:
            if topology.pk not in self._params:
                self._params[topology.pk] = topology.parsed
            return topology.pattern.waits(self._params[topology.pk], row.requested_delay)
        except ParamsError:
            return None


def _count_remaining(waits: Iterable[timedelta], entered_at: datetime, now: datetime) -> int:
    left, end_at = 0, entered_at
    for wait in waits:
        end_at += wait
        left += end_at > now
    return left


@dataclass(frozen=True)
class Wait:
    """A planned stay in a delay; `mark` is over, now, to come, or that of a message which remains:
    stuck, overdue."""

    begins_at: datetime
    length: timedelta
    mark: str


@dataclass(frozen=True)
class MessagePage:
    """`headers` are (name, text, whether the text is JSON of several lines).

    `is_masked`: something of it is hidden from the reader by a rule.
    """

    line: ScheduledLine
    headers: tuple[tuple[str, str, bool], ...]
    path: tuple[Wait, ...]
    has_body: bool
    is_masked: bool


def make_page(row: ScheduledMessage, now: datetime, hidden: Redaction) -> MessagePage:
    reader = Reader({row.broker_id: hidden})
    line = reader.line(row, now)
    has_body = ScheduledBody.objects.filter(message=row).exists()
    begins_at = row.entered_at
    path: list[Wait] = []
    for length in reader.find_waits(row) or () if begins_at else ():
        assert begins_at is not None
        ends_at = begins_at + length
        is_over = ends_at <= now or row.left_at is not None
        mark = "over" if is_over else "now" if begins_at <= now else "to come"
        path.append(Wait(begins_at, length, mark))
        begins_at = ends_at
    if path and (line.is_stuck or line.is_overdue):
        path[-1] = replace(path[-1], mark=line.state)
    return MessagePage(
        line=line,
        headers=tuple(
            (make_encodable(name), *_value(value)) for name, value in line.headers.items()
        ),
        path=tuple(path),
        has_body=has_body,
        is_masked=line.hides_something or (has_body and bool(hidden.body_paths)),
    )


def body(row: ScheduledMessage, hidden: Redaction) -> Body | None:
    """None where all of it is hidden. Raises ScheduledBody.DoesNotExist where none is kept."""
    kept = bytes(ScheduledBody.objects.get(message=row).body)
    if not hidden.body_paths:
        return show_body(kept)
    shown = hidden.body(unpack(kept).data)
    return None if shown == HIDDEN.encode() else replace(show_body(shown), size=len(kept))


def _value(value: Any) -> tuple[str, bool]:
    if isinstance(value, str):
        return make_encodable(value), False
    is_long = isinstance(value, (dict, list))
    text = json.dumps(value, indent=2 if is_long else None, ensure_ascii=False)
    return make_encodable(text), is_long
