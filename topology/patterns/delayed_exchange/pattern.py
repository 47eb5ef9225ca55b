"""Delayed exchange: the type x-delayed-message of a plugin that was archived in January 2026.

The plugin stores a message with the header x-delay (milliseconds) in a table of the node that it
was published to, then negates the header and routes the message.
Source: the plugin's README, issue 72 and src (3.8 to 4.2), read and not tried: the brokers of the
tests cannot have it. Impossible from 4.3 on, which has no Mnesia (rabbitmq-server PR 15542).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from topology.clients.describe import count_failures
from topology.definitions import (
    DELAY_HEADER,
    DELAYED_TYPE,
    LONGEST_DELAY_MS,
    Definitions,
    Exchange,
    is_tap,
)
from topology.delays import milliseconds
from topology.message import Headers, Route
from topology.patterns.delayed_exchange import params as parameters
from topology.patterns.delayed_exchange.params import Params
from topology.patterns.pattern import ParamsError, Pattern, Use, too_long
from topology.structure.copies import Copy, Reading, Tap

LONGEST = timedelta(milliseconds=LONGEST_DELAY_MS)
PROBE_DELAY = timedelta(minutes=1)
INSTEAD = (
    "Use delay levels instead: any delay, through visible and replicated queues. Use hold "
    "queues if few delays are enough."
)


class DelayedExchange(Pattern, parts=(parameters,)):
    IS_CREATED = False
    OFFERS_MIGRATION = True
    EXAMPLE = Params("reminders", "direct", (("orders", "orders"),))
    CHANGE_OBSTACLE = (
        "The plugin keeps its messages outside of queues, and no command reaches one of them. Let "
        "the consumer check cancellations (docs/scheduled-changes.md). For later changes, add a "
        "topology of delay levels, let the publishers use it, and wait until the plugin has "
        "delivered its messages."
    )

    def title(self, params: Params) -> str:
        return params.name

    def recognize(self, found: Definitions) -> Sequence[Use]:
        """Every exchange of the type, with its bindings: no queue delays."""
        delayed = (one for one in found.exchanges if one.type == DELAYED_TYPE)
        return [self._find_use(one, found) for one in sorted(delayed, key=lambda one: one.name)]

    def _find_use(self, exchange: Exchange, found: Definitions) -> Use:
        """The use of an exchange; without parameters where it chooses in another way, or leads to
        exchanges or nowhere.
        """
        bound = [b for b in found.leaving(exchange.name) if not is_tap(b.destination)]
        if all(one.destination_is_queue and not one.arguments for one in bound):
            pairs = tuple((one.routing_key, one.destination) for one in bound)
            kind = exchange.arguments.text("x-delayed-type") or ""
            with suppress(ParamsError):
                return self._compare(Params(exchange.name, kind, pairs), found)
        nowhere = "The exchange has no bindings, so RabbitMQ drops messages after their delay."
        claims = frozenset({exchange.identity, *(one.identity for one in bound)})
        return Use(self.KIND, exchange.name, None, claims, () if bound else (nowhere,))

    def obstacle(self, version: tuple[int, ...], params: Any = None) -> str:
        return (
            "Delayboard does not create exchanges of the delayed-message plugin, which was "
            f"archived in January 2026 and does not run on RabbitMQ 4.3 and later. {INSTEAD}"
        )

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """`target` is the routing key. Never mandatory: the broker gives back what it keeps."""
        ms = milliseconds(delay)
        if ms > LONGEST_DELAY_MS:
            raise too_long("the plugin", LONGEST)
        return Route(params.name, target, headers={DELAY_HEADER: ms} if ms > 0 else {})

    def longest(self, params: Params) -> timedelta:
        return LONGEST

    def targets(self, params: Params) -> Sequence[str]:
        """The keys that are bound, unless a pattern among them takes others too."""
        words = {word for key in params.keys for word in key.split(".")}
        is_free = params.type == "topic" and not words.isdisjoint(("*", "#"))
        return () if is_free else params.keys

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        """Delayboard does not publish to this pattern: it cannot report the outcome correctly."""
        if is_tap(target):
            return "Delayboard uses this queue as a tap. Enter another queue."
        return (
            "Delayboard cannot publish here, because a delayed exchange returns mandatory "
            "messages although it stores them. Publish with the code in this pattern's "
            "explanation."
        )

    def trials(self, params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
        """Each binding's key, to the first queue of it; a pattern matches the key that spells
        it."""
        first = dict(reversed(params.bound))
        return [(PROBE_DELAY, key, first[key]) for key in params.keys]

    def probe_obstacle(self, params: Params, found: Definitions) -> str:
        return (
            "Probes are not available, because a delayed exchange returns mandatory messages "
            "although it stores them, so Delayboard cannot know whether it sent a probe."
        )

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        sentences = [
            "Entries are not observed, because the plugin stores messages before any queue or "
            "tap. Deliveries are observed.",
            (f"RabbitMQ 4.3 does not support this exchange, so it blocks an upgrade. {INSTEAD}"),
        ]
        exchange = found.exchange(params.name)
        if exchange and (alternate := exchange.arguments.text("alternate-exchange")):
            sentences.append(
                f"The alternate exchange “{alternate}” receives a copy of each delayed message "
                "at publish time."
            )
        return sentences

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """The header shows it: positive before the delay, negative after it.

        The plugin counts no rounds: each trip is the first, unless its client counts failures.
        """
        if copy.exchange != params.name:
            return None
        queues = [queue for key, queue in params.bound if key == copy.routing_key]
        queue = queues[0] if len(queues) == 1 else ""
        ms = _stated_ms(copy.headers)
        delay = timedelta(milliseconds=abs(ms))
        attempt = count_failures(copy.headers, queue) or 1
        if ms > 0:
            return Reading("entry", copy.routing_key, "", delay, attempt)
        if ms < 0:
            return Reading("exit", copy.routing_key, queue, delay, attempt)
        return Reading("publish", copy.routing_key, queue, timedelta(0), 0)

    def taps(self, params: Params) -> Sequence[Tap]:
        """A tap is bound as the real queues are, so that it sees what comes out."""
        keys = params.keys if params.type == "direct" else ("#",)
        return [Tap(params.name, key, "exit") for key in keys]

    def code_values(self, params: Params) -> Mapping[str, Any]:
        return {"exchange": params.name, "key": params.keys[0], "delay_header": DELAY_HEADER}


delayed_exchange = DelayedExchange()


def _stated_ms(headers: Headers) -> int:
    """0 for what is no delay of the plugin's, before or after it."""
    stated = headers.get(DELAY_HEADER)
    if not isinstance(stated, int) or isinstance(stated, bool):
        return 0
    return stated if abs(stated) <= LONGEST_DELAY_MS else 0
