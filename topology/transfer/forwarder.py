"""The consumer of a busy-waiting queue: what is due goes on, all else makes another lap.

A message is acknowledged only after the broker has confirmed its next stay, so that no crash
loses one; what was not confirmed by then is there twice. x-death is taken off: no rule against
cycles counts laps, and brokers before 4.0 believe the one that a message is published with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event
from time import monotonic, time_ns
from typing import Literal

from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import Answer, pipeline
from topology.broker.errors import BrokerError
from topology.message import Forwarder, Message, Publish, Route
from topology.patterns.busy_wait.params import WAITED_HEADER
from topology.routing.forwarder import due_ms
from topology.transfer.move import QueueSource, move
from topology.transfer.prepare import prepare

# Seconds for confirms at the end: what has none by then may be published twice.
PATIENCE_SECONDS = 3.0
BEAT_SECONDS = 0.5
# Number of latest messages of which percentiles are made.
REMEMBERED = 1000


@dataclass(frozen=True)
class Decision:
    """Where a message goes: onward when it is due or does not tell, else back.

    `late_ms` is how long it was due, None where it is not or does not tell. `done` is called when
    the broker has confirmed it, before the ack.
    """

    fate: Literal["passed", "looped", "without_due_header"]
    publish: Publish
    late_ms: int | None = None
    done: Callable[[Publish], object] = lambda publish: None


@dataclass(frozen=True)
class Altered:
    """A message whose due time was changed: the new one, headers to set, and what is then done."""

    due_ms: int
    headers: Mapping[str, str]
    done: Callable[[Publish], object]


def decide(
    forwarder: Forwarder, message: Message, now_ms: int, altered: Altered | None = None
) -> Decision:
    """What becomes of it at this moment (UTC milliseconds).

    One without a due time that can be read goes to the processing queue: it was meant for it,
    and would go round for ever.
    """
    if altered is not None:
        is_due = altered.due_ms <= now_ms
        queue = forwarder.onward if is_due else forwarder.back
        headers: dict[str, str | int] = {forwarder.due_header: altered.due_ms, **altered.headers}
        publish = _publish(message, queue, altered.due_ms, headers)
        fate: Literal["passed", "looped"] = "passed" if is_due else "looped"
        return Decision(fate, publish, done=altered.done)
    due = due_ms(message.headers, forwarder.due_header, now_ms)
    if due is not None and due > now_ms:
        return Decision("looped", _publish(message, forwarder.back, due))
    publish = _publish(message, forwarder.onward, due)
    if due is None:
        return Decision("without_due_header", publish)
    return Decision("passed", publish, now_ms - due)


def _publish(
    message: Message, queue: str, due: int | None, headers: Mapping[str, str | int] | None = None
) -> Publish:
    waited = {} if due is None else {WAITED_HEADER: due}
    return prepare(
        Route("", queue),
        message.properties,
        message.body,
        {**waited, **(headers or {})},
        # It had no confirm, so it may have arrived: after a crash, or after a nack.
        may_be_duplicated=message.redelivered,
        is_tolerant=True,
    )


@dataclass
class ForwarderCounts:
    """What a forwarder did since it was started, and how late it was."""

    passed: int = 0
    looped: int = 0
    returned: int = 0
    without_due_header: int = 0
    late_ms: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def count(self, decision: Decision) -> None:
        setattr(self, decision.fate, getattr(self, decision.fate) + 1)
        if decision.late_ms is not None:
            self.late_ms.append(decision.late_ms)

    def counters(self) -> dict[str, object]:
        """Numbers since the start; how late the latest thousand were, None before the first."""
        ordered = sorted(self.late_ms)
        last = len(ordered) - 1
        return {
            "passed": self.passed,
            "looped": self.looped,
            "returned": self.returned,
            "without_due_header": self.without_due_header,
            "late_p50_ms": ordered[last // 2] if ordered else None,
            "late_p99_ms": ordered[last * 99 // 100] if ordered else None,
            "late_last_ms": self.late_ms[-1] if ordered else None,
        }


def wait(
    address: Address,
    forwarder: Forwarder,
    *,
    stop: Event,
    beat: Callable[[Mapping[str, object]], None],
    passing: ForwarderCounts,
    window: int,
    alter: Callable[[Message], Altered | Literal["drop"] | None] = lambda message: None,
    explain_nack: Callable[[Answer], Answer] = lambda answer: answer,
) -> None:
    """Consume the forwarder's queue until `stop` is set.

    At most `window` are on the way at once: so many may a crash duplicate. `alter` says of each
    whether it goes on as it is: what it drops, and has noted, goes nowhere.
    `explain_nack` is that of `move`. `beat` gets the counters about twice a second. Raises
    BrokerError, a sentence, when the connection breaks or a queue does not take a message, which
    then stays; calling again goes on.
    """

    beaten = monotonic()
    refused: list[BrokerError] = []

    def decide_arrival(arrival: Delivery) -> tuple[Publish, Decision] | Literal["drop"]:
        message = arrival.message
        altered = alter(message)
        if altered == "drop":
            return "drop"
        decision = decide(forwarder, message, time_ns() // 1_000_000, altered)
        return decision.publish, decision

    def count_answer(decision: Decision, answer: Answer) -> None:
        if answer.kind == "confirmed":
            passing.count(decision)
            decision.done(decision.publish)
        elif answer.kind != "unknown":
            passing.returned += 1
            refused.append(_refusal(answer, decision.publish.routing_key, forwarder.queue))

    def turn() -> None:
        nonlocal beaten
        if monotonic() - beaten > BEAT_SECONDS:
            beaten = monotonic()
            beat(passing.counters())

    def explain(answer: Answer) -> Answer:
        with taking.attended():
            return explain_nack(answer)

    name = f"forwarder of {forwarder.queue}"
    with (
        pipeline(address, name) as publishing,
        Consumer(address, forwarder.queue, prefetch=window, in_thread=False) as taking,
    ):
        source = QueueSource(taking, decide_arrival, count_answer, prefetch=window, is_strict=True)
        move(
            source,
            publishing,
            window=window,
            is_stopping=stop.is_set,
            turn=turn,
            idle_seconds=0,
            patience_seconds=PATIENCE_SECONDS,
            explain_nack=explain,
        )
    if refused:
        beat(passing.counters())
        raise refused[0]


def _refusal(answer: Answer, queue: str, source: str) -> BrokerError:
    match answer.kind:
        case "returned":
            return BrokerError(
                f"The queue “{queue}” does not exist, so its messages remain in “{source}”. "
                "Create the queue."
            )
        case "nacked":
            return BrokerError(
                f"{answer.error} The messages are still in “{source}”, and are sent again, marked "
                "as possible duplicates."
            )
    return BrokerError(f"{answer.error} The messages remain in “{source}”.")
