"""What nacks say of messages, by a look at the queues that these were routed to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from topology import snapshots
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import NACKED, BrokerError, Nacked, NotFound, Rejected
from topology.broker.management.client import Management
from topology.broker.management.observe import read_with_policies
from topology.broker.management.refresh import refresh_route
from topology.definitions import Definitions
from topology.message import Publish
from topology.models import Broker
from topology.routing.matching.index import Index
from topology.routing.matching.match import Matched, keys_of, match
from topology.routing.nack import Nack, SeenQueue, explain_nack

# Seconds for which one look serves all nacks: thousands may come at once.
LASTS_SECONDS = 1.0
# Seconds that a look at a route, or at its queues, waits for the broker: a lease lasts longer.
LOOK_SECONDS = 5.0
_UNKNOWN = Nack(False, NACKED)


@contextmanager
def explaining(broker: Broker, publish: Publish) -> Iterator[None]:
    """A publish by itself: what it raises as Nacked is raised with its reason, or as Rejected."""
    try:
        yield
    except Nacked as error:
        nack = NackCheck(broker).explain(publish)
        raise (Rejected if nack.is_refused else Nacked)(nack.sentence) from error


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
            return _UNKNOWN
        try:
            return self._explain(publish)
        except ValueError:
            return _UNKNOWN
        except BrokerError:
            self._is_silent = True
            return _UNKNOWN
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
