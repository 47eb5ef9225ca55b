"""What RabbitMQ's answer to a publish means, by a look at the queues that it was routed to.

A confirm is none where only a tap of ours took the message. RabbitMQ nacks a publish when one of
its queues refused it or failed, although the others took it, and when the only one failed after it
took it. So a nack proves nothing, but in one case: the message was routed to one queue, and that
queue rejects messages because it is full. A classic queue checks its limit before it takes a
message, and of a quorum queue the publisher's channel does, before it sends it (tried on 3.10.8,
4.0.5 and 4.3.6: tests/real_broker/test_nacks.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from topology import snapshots
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import (
    NACKED,
    BrokerError,
    NotFound,
)
from topology.broker.management.client import Management
from topology.broker.management.observe import read_with_policies
from topology.broker.management.refresh import refresh_route
from topology.content.text import count_text
from topology.definitions import Definitions, Queue, is_tap
from topology.message import Publish
from topology.models import Broker
from topology.routing.matching.index import Index
from topology.routing.matching.match import Matched, keys_of, match
from topology.structure.taps import lost_without_taps, tapped_exchanges

# Seconds for which one reading of the broker serves all nacks: thousands may come at once.
LASTS_SECONDS = 1.0
# Seconds that a reading of a route, or of its queues, waits for the broker: a lease lasts longer.
LOOK_SECONDS = 5.0
# Most names in a sentence.
NAMED = 3


class TapCheck:
    """Checks a confirm at an exchange with a tap of ours: it may be the tap's alone.

    Each exchange is looked at once, and each key walked once, unless headers decide there.
    """

    def __init__(self, management: Management, known: Definitions) -> None:
        self._management, self._known = management, known
        # By exchange, without taps; None where no tap gets anything.
        self._routes: dict[str, Definitions | None] = {}
        self._walked: dict[tuple[str, str], str] = {}

    def explain_loss(self, publish: Publish) -> str:
        """Why no real queue can have taken it; "" when one can. Raises BrokerError."""
        exchange = publish.exchange
        if exchange not in self._routes:
            found = refresh_route(self._management, self._known, exchange)
            # A tap that is gone since may have confirmed all the same.
            is_tapped = any(exchange in tapped_exchanges(one) for one in (found, self._known))
            self._routes[exchange] = found.without_taps() if is_tapped else None
        if (route := self._routes[exchange]) is None:
            return ""
        key = (exchange, publish.routing_key)
        if key not in self._walked or any(one.type == "headers" for one in route.exchanges):
            why = lost_without_taps(route, publish)
            sentence = f"No queue but a tap of Delayboard receives the message: {why}."
            self._walked[key] = sentence if why else ""
        return self._walked[key]


def find_known(broker: Broker) -> Definitions:
    """The latest definitions, however old: a `TapCheck` reads routes again. Raises BrokerError."""
    known = snapshots.latest(broker.pk)
    snapshot = known.snapshot if known and known.snapshot else snapshots.recent(broker)
    return snapshot.definitions


class NackCheck:
    """Explains the nacks of one broker. An exchange and a queue are read once a second at most."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._looked_at: float | None = None
        self._is_silent = False
        self._indexes: dict[str, Index] = {}
        self._queues: dict[str, SeenQueue | None] = {}

    def explain(self, publish: Publish) -> Nack:
        """Where the broker cannot be read, the message may have arrived."""
        if self._looked_at and time.monotonic() - self._looked_at > LASTS_SECONDS:
            self._looked_at, self._is_silent = None, False
            self._indexes.clear()
            self._queues.clear()
        if self._is_silent:
            return Nack(False, NACKED)
        try:
            return self._explain(publish)
        except ValueError:
            return Nack(False, NACKED)
        except BrokerError:
            self._is_silent = True
            return Nack(False, NACKED)
        finally:
            # After the first look: a slow one serves those that wait for it.
            self._looked_at = self._looked_at or time.monotonic()

    def settle(self, answer: Answer) -> Answer:
        """A nacked answer with its reason, as `refused` if no queue took the message."""
        if answer.publish is None:
            return answer
        nack = self.explain(answer.publish)
        return Answer("refused" if nack.is_refused else "nacked", nack.sentence, answer.again)

    def _explain(self, publish: Publish) -> Nack:
        """Raises BrokerError, and ValueError for a message that no broker takes."""
        matched = self._match(publish)
        if unread := [name for name in matched.queues if name not in self._queues]:
            self._read_queues(unread)
        found = {name: queue for name in matched.queues if (queue := self._queues[name])}
        return explain_nack(matched, found)

    def _match(self, publish: Publish) -> Matched:
        exchange, headers = publish.exchange, publish.properties.headers
        keys = keys_of(publish.routing_key, headers)
        if not exchange:
            return Matched(tuple(sorted({*keys})))
        if exchange not in self._indexes:
            known = snapshots.recent(self._broker).definitions
            with Management(self._broker.address, in_all=LOOK_SECONDS) as management:
                route = refresh_route(management, Definitions(queues=known.queues), exchange)
            self._indexes[exchange] = Index(route)
        return match(self._indexes[exchange], exchange, keys, headers)

    def _read_queues(self, wanted: Sequence[str]) -> None:
        reports: list[dict[str, Any]] = []
        with Management(self._broker.address, in_all=LOOK_SECONDS) as management:
            for name in wanted:
                with suppress(NotFound):
                    reports.append(management.queue(name))
            seen = read_with_policies(management, {}, reports, [], [], [])
        queues = [SeenQueue(queue) for queue in seen.definitions.queues]
        # The management API is seconds late, and of 4.3 it reports a classic queue of a dead node
        # as running. A passive declare does not find it.
        asked = [
            one.queue.name for one in queues if one.queue.type == "classic" or one.rejects_when_full
        ]
        address = self._broker.address
        ready = live_depths(address, asked, in_all=LOOK_SECONDS) if asked else {}
        self._queues |= dict.fromkeys(wanted)
        for one in queues:
            name = one.queue.name
            # A quorum queue that elects a leader is reported as down for a moment.
            is_down = name in asked and name not in ready
            is_minority = seen.numbers[name].state == "minority"
            self._queues[name] = replace(one, ready=ready.get(name), is_down=is_down or is_minority)


class Nack(NamedTuple):
    """`is_refused`: no queue took the message. Otherwise it may have arrived."""

    is_refused: bool
    sentence: str


@dataclass(frozen=True)
class SeenQueue:
    """A queue right after the nack: `ready` messages, None where this is unknown. `is_down`: it
    takes no message, because its node is down or too few of its members run.
    """

    queue: Queue
    ready: int | None = None
    is_down: bool = False

    @property
    def rejects_when_full(self) -> bool:
        """Whether the queue rejects publishes when it is full; False with reject-publish-dlx, which
        dead-letters what it rejects.
        """
        overflow = self.queue.arguments.text("x-overflow")
        return overflow == "reject-publish" and self.queue.type in ("classic", "quorum")

    @property
    def most(self) -> int | None:
        return self.queue.arguments.number("x-max-length")

    @property
    def is_rejecting(self) -> bool:
        is_known = self.most is not None and self.ready is not None
        is_full = is_known and (self.ready or 0) >= (self.most or 0)
        return is_full and self.rejects_when_full and not self.is_down

    @property
    def trouble(self) -> str:
        """Why it does not take messages; "" when nothing shows it."""
        if self.is_down:
            return f"“{self.queue.name}” is not available"
        if self.is_rejecting:
            return f"“{self.queue.name}” is full and rejects messages"
        return ""


def explain_nack(matched: Matched, seen: Mapping[str, SeenQueue]) -> Nack:
    """`matched` is where the message was routed, taps included; `seen` are these queues.

    On any doubt about the route the message may have arrived.
    """
    is_certain = not (matched.unforeseeable or matched.storing)
    queues = [seen[name] for name in matched.queues if name in seen]
    troubled = [one for one in queues if one.trouble]
    if is_certain and len(matched.queues) == 1 and queues and queues[0].is_rejecting:
        name = queues[0].queue.name
        return Nack(
            True,
            f"The queue “{name}” is full and rejected the message. Consume its messages, or raise "
            "its maximum length.",
        )
    causes = [one.trouble for one in troubled] or ["a queue refused it or failed"]
    # One of several full queues may have become full by this message.
    is_alone = len(troubled) == 1 and troubled[0].is_rejecting
    refused = troubled[0].queue.name if is_alone else None
    others = [name for name in matched.queues if name != refused and not is_tap(name)]
    possible = [f"“{name}”" for name in others]
    places = f" in {_enumerate(possible)}" if possible and is_certain else ""
    return Nack(
        False,
        f"RabbitMQ rejected the message because {_enumerate(causes)}. It may have arrived{places}.",
    )


def _enumerate(parts: Sequence[str]) -> str:
    shown = list(parts[:NAMED])
    if more := len(parts) - len(shown):
        shown.append(f"{count_text(more)} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
