"""PURE: which pattern fits two answers and a client library, why, and what is observed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topology.patterns.delay_levels.params import KIND as DELAY_LEVELS
from topology.patterns.delay_queues.params import KIND as DELAY_QUEUES
from topology.patterns.pattern import Pattern
from topology.patterns.retry_ladder.params import KIND as RETRY_LADDER

PURPOSES = {"delay": "Delay new messages", "retry": "Retry failed messages"}
DELAYS = {"fixed": "A few fixed delays", "any": "Any delay"}
# Libraries of docs/clients.md: those that read delay levels, then those that declare their own
# queues.
_LEVELS = {"celery": "celery", "nservicebus": "nsb-v2"}
_OWN = ("easynetq", "golevelup", "laravel", "rascal", "sneakers", "symfony", "taskiq")
CLIENTS = {
    "": "Own code or another library",
    "celery": "Celery",
    "easynetq": "EasyNetQ",
    "golevelup": "golevelup (NestJS)",
    "laravel": "Laravel",
    "nservicebus": "NServiceBus",
    "rascal": "rascal",
    "sneakers": "Sneakers",
    "symfony": "Symfony Messenger",
    "taskiq": "taskiq",
}


@dataclass(frozen=True)
class Advice:
    """A kind of pattern with the first values of its form, and one or two sentences why.

    `adopt` says that the library declares delay queues of its own; "" where it does not.
    """

    kind: str
    reason: str
    values: Mapping[str, str] = field(default_factory=dict)
    adopt: str = ""


def recommend(purpose: str, delays: str, client: str) -> Advice:
    """Advice for a key of PURPOSES, of DELAYS and of CLIENTS; other texts count as the first of
    each.
    """
    if preset := _LEVELS.get(client):
        reason = (
            f"{CLIENTS[client]} publishes new and failed messages with a delay into exactly these "
            "levels, by these names. Any other pattern needs code that replaces it."
        )
        return Advice(DELAY_LEVELS, reason, {"preset": preset})
    name = CLIENTS.get(client, "")
    adopt = (
        f"{name} can declare delay queues of its own. Start it, then adopt them: Delayboard lists "
        "their messages and creates nothing."
        if client in _OWN
        else ""
    )
    if delays == "any":
        reason = (
            "28 shared queues give every delay in steps of a second: a new delay or destination "
            "needs no new queue, and quorum queues keep a message until its destination takes it."
        )
        if purpose == "retry":
            reason += " The consumer publishes a failed message with the delay that it chose."
        return Advice(DELAY_LEVELS, reason, {"preset": "own"}, adopt)
    if purpose == "retry":
        reason = (
            "The consumer only rejects: RabbitMQ counts the attempts, makes each delay longer, and "
            "parks the message after the last. Taps see every retry, and single messages can be "
            "changed. From RabbitMQ 4.3 on, Quorum retry needs fewer queues and shows less."
        )
        return Advice(RETRY_LADDER, reason, {}, adopt)
    reason = (
        "One queue for each delay, in front of a work queue that needs no change. Messages with "
        "one delay keep their order, and delays do not block each other."
    )
    return Advice(DELAY_QUEUES, reason, {}, adopt)


def describe_recording(pattern: Pattern, params: Any) -> list[tuple[str, str]]:
    """What will be observed of such a topology once it is applied, and by which means."""
    if pattern.ATTEMPTS_COUNTED_BY == "queue":
        inside = "not observed: messages wait inside the work queue"
        return [("Entries", inside), ("Deliveries", "by a tap")]
    seen = {tap.phase for tap in pattern.taps(params) if not tap.destination}
    beside = "only with the firehose of the virtual host, which an admin can enable"
    entries = "by a tap" if "entry" in seen else f"those that Delayboard publishes; others {beside}"
    return [("Entries", entries), ("Deliveries", "by a tap" if "exit" in seen else beside)]
