"""PURE: a copy made by the firehose -> the original message -> a MessageEvent.

Events that a topology's tap sees are in the log already: the same publish or delivery has no
topology here, and is not in the list or the reports. A topology's own events are those that none of
its taps sees: an entry in a publish that reached a queue, an exit in a delivery.

A delivery is the moment when a consumer received the message: its lateness includes the wait for
that consumer, and reports show this. x-death is not better: it has no time for later rounds, and
whole seconds for the first. A delivery is not an ack: a message that is requeued is delivered
again, marked `redelivered`, and only the first delivery of a message without an id is an exit,
because the second cannot be distinguished from another message. From 4.0 on the next round of a
rejected message may be marked too, so a message with a rejection in its history counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from analytics.events import MessageEvent, bounded
from analytics.recorder.copies import UNFORESEEN, Place, event_of_copy
from topology.deaths import newest_death, read_history
from topology.definitions import TAP_PREFIX, is_probe, is_tap
from topology.message import DEATH_HEADERS, Message, Properties
from topology.patterns.pattern import Pattern
from topology.structure.copies import Copy, Phase, Reading

PUBLISH, DELIVER = "publish.", "deliver."
_TEXTS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
_NUMBERS = ("delivery_mode", "priority", "timestamp")


@dataclass(frozen=True)
class Trace:
    """One copy: the original message and its publisher or consumer.

    `queue` is the queue of a delivery, "" for a publish; `routed` are the queues that a publish
    reached, without our taps.
    """

    is_delivery: bool
    queue: str
    message: Message
    routed: tuple[str, ...]
    user: str
    connection: str


@dataclass(frozen=True)
class Watched:
    """A topology of the vhost, which phases of it no tap sees, how large a body is kept.

    Taps see the deliveries to `tapped_destinations`.

    With the phase "publish" it also owns what passes it without a delay: publishes straight to the
    work and their deliveries, which then have `attempt` 0.
    """

    slug: str
    pattern: Pattern
    params: Any
    phases: frozenset[Phase]
    keep_bytes: int = -1
    tapped_destinations: frozenset[str] = frozenset()


def is_own(copy: Message) -> bool:
    """Whether it is about the reading of one of our taps."""
    return copy.routing_key.startswith(DELIVER + TAP_PREFIX)


def read_trace(copy: Message) -> Trace | None:
    """The original of a copy; None when it is no copy of the firehose, or that of a probe.

    RabbitMQ states properties by their names, without those that are absent, and header
    values by their types (rabbit_trace.erl; tried on 3.10.8, 4.0.5 and 4.3.6).
    """
    report = copy.headers
    keys, properties = report.get("routing_keys"), report.get("properties")
    is_delivery = copy.routing_key.startswith(DELIVER)
    if not (is_delivery or copy.routing_key.startswith(PUBLISH)):
        return None
    if not isinstance(keys, Sequence) or not keys or not isinstance(properties, Mapping):
        return None
    key = _text(keys[0])
    if is_probe(key.rpartition(".")[2]):
        return None
    reached = report.get("routed_queues")
    routed = [_text(queue) for queue in reached] if isinstance(reached, list) else []
    return Trace(
        is_delivery=is_delivery,
        queue=copy.routing_key.removeprefix(DELIVER) if is_delivery else "",
        message=Message(
            exchange=_text(report.get("exchange_name")),
            routing_key=key,
            properties=_properties(properties),
            body=copy.body,
            redelivered=copy.redelivered or report.get("redelivered") == 1,
        ),
        routed=tuple(queue for queue in routed if not is_tap(queue)),
        user=_text(report.get("user")),
        connection=_text(report.get("connection")),
    )


def find_failure_queues(trace: Trace) -> tuple[str, ...]:
    """The queues that a publish of a message reached which failed in another queue."""
    if trace.is_delivery or "x-death" not in trace.message.headers:
        return ()
    failure = read_history(trace.message.headers).first_failure
    return tuple(queue for queue in trace.routed if failure and queue != failure.queue)


def event_of_trace(
    trace: Trace,
    watched: Sequence[Watched],
    *,
    broker: str,
    vhost: str,
    event_id: str,
    recorded_at: datetime,
    caught_up: bool,
    keeps_deaths: bool,
) -> MessageEvent:
    """The event of a trace: of the first topology that owns it, else of none.

    `keeps_deaths`: the broker continues an x-death that a client published, as versions before 4.0
    do; later versions start again, so that such a message is in its first round.
    """
    topology, reading = _owner(trace, watched, recorded_at, keeps_deaths=keeps_deaths)
    place = Place(
        broker, vhost, topology.slug if topology else "", topology.pattern.KIND if topology else ""
    )
    event = event_of_copy(
        trace.message,
        reading,
        place,
        event_id=event_id,
        recorded_at=recorded_at,
        caught_up=caught_up,
        keep_bytes=topology.keep_bytes if topology and not trace.is_delivery else -1,
    )
    sentence = "" if trace.is_delivery else _publisher(trace)
    return replace(event, source="firehose", published_by=sentence or event.published_by)


def _owner(
    trace: Trace, watched: Sequence[Watched], at: datetime, *, keeps_deaths: bool
) -> tuple[Watched | None, Reading]:
    message = trace.message
    headers = message.headers
    if not trace.is_delivery and not keeps_deaths:
        headers = {name: value for name, value in headers.items() if name not in DEATH_HEADERS}
    expiration = message.properties.expiration
    at_ms = int(at.timestamp() * 1000)
    copy = Copy(message.exchange, message.routing_key, headers, expiration, at_ms, message.body)
    # A message in the delay of one topology may also pass another that has no delay for it.
    phases: tuple[Phase, ...] = ("exit" if trace.is_delivery else "entry", "publish")
    if _is_unique(trace):
        for phase in phases:
            for topology in watched:
                if phase in topology.phases and (reading := _read(topology, copy, phase)):
                    if trace.is_delivery and phase == "publish":
                        reading = replace(reading, phase="exit", queue=trace.queue)
                    return topology, reading
    return None, _read_unknown(trace)


def _is_unique(trace: Trace) -> bool:
    """Whether this is the copy by which the message entered or left, and not one more."""
    if not trace.is_delivery:
        return bool(trace.routed)
    if not trace.message.redelivered or trace.message.properties.message_id:
        return True
    return read_history(trace.message.headers).first_failure is not None


def _read(topology: Watched, copy: Copy, phase: Phase) -> Reading | None:
    """What it means in this phase of the topology; None when it is none of it."""
    try:
        reading = topology.pattern.read(topology.params, copy)
    except UNFORESEEN:
        # Headers that no pattern foresaw, on a message that need not even be one of its own.
        return None
    if reading is None or reading.phase != phase:
        return None
    if phase == "exit" and reading.destination in topology.tapped_destinations:
        return None
    return reading if phase != "publish" or _is_for(topology, reading, copy) else None


def _is_for(topology: Watched, reading: Reading, copy: Copy) -> bool:
    """Whether what passes the delays is for a target of the topology.

    One with free targets reads whatever passes an exchange; at the default one that is everything.
    What expired elsewhere comes out of another delay.
    """
    died = newest_death(copy.headers)
    if died and died[1] == "expired":
        return False
    targets = topology.pattern.targets(topology.params)
    return reading.destination in targets if targets else copy.exchange != ""


def _read_unknown(trace: Trace) -> Reading:
    queue = trace.queue or (trace.routed[0] if len(trace.routed) == 1 else "")
    death = newest_death(trace.message.headers) or ("", "")
    phase: Phase = "exit" if trace.is_delivery else "publish"
    return Reading(phase, "", queue, timedelta(0), 0, *death)


def _publisher(trace: Trace) -> str:
    """The user and the host that it came from: "orders at 10.0.0.7"."""
    peer = trace.connection.partition(" -> ")[0] if " -> " in trace.connection else ""
    host = peer.rpartition(":")[0]
    return bounded(f"{trace.user} at {host}" if host else trace.user)


def _properties(report: Mapping[str, Any]) -> Properties:
    headers = report.get("headers")
    stated: dict[str, Any] = {name: _text(report[name]) for name in _TEXTS if name in report}
    stated |= {name: report[name] for name in _NUMBERS if isinstance(report.get(name), int)}
    return Properties(headers=dict(headers) if isinstance(headers, Mapping) else {}, **stated)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else ""
