"""Delayed exchange: the type x-delayed-message of a plugin that was archived in January 2026.

Mechanism: the plugin keeps a message with the header x-delay (milliseconds) in a table of the
node that it was published to, then negates the header and lets the exchange choose its queues.
Guarantee: none beyond its node; the time is never early.
Cost: no queues and no hops; a table that is not made for a hundred thousand messages (issue 72).
Hazard: one copy on one node, gone with it or with the plugin; nothing can be listed or called
back; a mandatory publish is given back although it is kept.
Source: the plugin's README and src (3.8 to 4.2), read and not tried: none of the brokers of our
tests can have it. Impossible from 4.3 on, which has no Mnesia (rabbitmq-server PR 15542).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import timedelta

from topology.definitions import (
    DELAY_HEADER,
    DELAYED_TYPE,
    LONGEST_DELAY_MS,
    Definitions,
    is_tap,
)
from topology.delays import format_delay, milliseconds
from topology.message import Headers, Route
from topology.patterns.delayed_exchange import params as parameters
from topology.patterns.delayed_exchange import recognize as recognition
from topology.patterns.delayed_exchange.params import Params
from topology.patterns.pattern import Copy, Explanation, ParamsError, Pattern, Reading, Tap

LONGEST = timedelta(milliseconds=LONGEST_DELAY_MS)
FIRST_WITHOUT = (4, 3)
PROBE_DELAY = timedelta(minutes=1)
INSTEAD = (
    "Delay levels replace it: any delay, through queues that can be seen and replicated; or hold "
    "queues where a few delays are enough."
)


_EXPLANATION = Explanation(
    title="Delayed exchange",
    summary="The exchange of a plugin that is no longer maintained: any delay up to 49 days.",
    mechanism=(
        "An exchange of the type x-delayed-message keeps each message that has the header x-delay, "
        "a number of milliseconds, outside of every queue. When the time is over it chooses the "
        "queues as the type in its argument x-delayed-type would, and the header is negative from "
        "then on. Without the header a message goes on at once."
    ),
    guarantee=(
        "Never earlier than the delay, and nothing more: what waits is one copy on one node, and "
        "what finds no queue when its time comes is lost."
    ),
    cost=(
        "No queue and no hop for a delay, and a write to one table of the node. The plugin's own "
        "page says that it is not made for a hundred thousand messages, nor for more than a day "
        "or two."
    ),
    hazards=(
        "The plugin was archived in January 2026, its last release is for RabbitMQ 4.2, and 4.3 "
        "cannot have it: it needs the database Mnesia, which is gone. Before an upgrade nothing "
        f"may wait in it any more. {INSTEAD}",
        "To migrate: set the replacement up beside it, with the same queues as destinations; let "
        "the publishers go over, one after the other; wait until the longest delay is over and the "
        "broker counts no delayed message of the exchange; then delete it and disable the plugin.",
        "When the node is lost, or the plugin is disabled, all that waits is lost.",
        "Nobody can list, count for one queue, call back or purge what waits: the broker tells one "
        "number for each exchange.",
        "A mandatory publish is given back as not routed although it is kept and will arrive, so "
        "that no publisher can tell it from a lost one. Delayboard publishes mandatory only, and "
        "so it publishes nothing through such an exchange, rather than say that it is lost: use "
        "the lines on this page.",
        "A delay over 49 days 17 hours, or one below zero, is no delay: the message arrives at "
        "once. An alternate exchange gets a copy of everything at the moment of publishing.",
    ),
    source="RabbitMQ Delayed Message Plugin, README (archived 2026-01-29)",
)


class DelayedExchange(Pattern):
    KIND = parameters.KIND
    FIELDS = parameters.FIELDS
    EXPLANATION = _EXPLANATION
    EXAMPLE = Params("reminders", "direct", (("orders", "orders"),))
    parse = staticmethod(parameters.parse)
    store = staticmethod(parameters.store)
    definitions = staticmethod(parameters.definitions)
    recognize = staticmethod(recognition.recognize)

    def title(self, params: Params) -> str:
        return params.name

    def obstacle(
        self, params: Params, version: tuple[int, ...], exchange_types: Collection[str]
    ) -> str:
        """It is there where the broker lists the type; else what stands in the way and what
        replaces it."""
        if DELAYED_TYPE in exchange_types:
            return ""
        if version >= FIRST_WITHOUT:
            return (
                "RabbitMQ 4.3 and later cannot have the delayed-message plugin: it needs Mnesia, "
                f"which they no longer have, and was archived in January 2026. {INSTEAD}"
            )
        return (
            f"This broker has no exchange type {DELAYED_TYPE}: it comes with the delayed-message "
            f"plugin, which was archived in January 2026 and cannot go along to RabbitMQ 4.3. "
            f"{INSTEAD}"
        )

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """`target` is the routing key. Never mandatory: the broker gives back what it keeps."""
        ms = milliseconds(delay)
        if ms > LONGEST_DELAY_MS:
            raise ParamsError(
                {"delay": f"The longest delay of the plugin is {format_delay(LONGEST)}."}
            )
        return Route(params.name, target, headers={DELAY_HEADER: ms} if ms > 0 else {})

    def longest(self, params: Params) -> timedelta:
        return LONGEST

    def targets(self, params: Params) -> Sequence[str]:
        """The keys that are bound, unless a pattern among them takes others too."""
        is_free = params.type == "topic" and any(_is_pattern(key) for key in params.keys)
        return () if is_free else params.keys

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        """Delayboard does not publish here: what it could say of the outcome would be wrong."""
        if is_tap(target):
            return "That is Delayboard's own tap."
        return (
            "Delayboard publishes mandatory, and a delayed exchange gives back such a message as "
            "not routed although it keeps it: publish it as the explanation of this pattern shows."
        )

    def probes(self, params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
        """Each binding's key, to the first queue of it; a pattern matches the key that spells
        it."""
        first = dict(reversed(params.bound))
        return [(PROBE_DELAY, key, first[key]) for key in params.keys]

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        said = [
            "What enters its delay is not observed: the plugin keeps it before any queue or tap. "
            "What comes out is.",
            f"RabbitMQ 4.3 cannot hold it: it stands in the way of an upgrade. {INSTEAD}",
        ]
        exchange = found.exchange(params.name)
        if exchange and (alternate := exchange.arguments.text("alternate-exchange")):
            said.append(
                f"Its alternate exchange “{alternate}” gets a copy of everything that is delayed, "
                "at the moment of publishing."
            )
        return said

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """The header tells: positive before the delay, negative after it.

        Rounds are not counted anywhere, so each is the first.
        """
        if copy.exchange != params.name:
            return None
        queues = [queue for key, queue in params.bound if key == copy.routing_key]
        queue = queues[0] if len(queues) == 1 else ""
        ms = _stated_ms(copy.headers)
        delay = timedelta(milliseconds=abs(ms))
        if ms > 0:
            return Reading("entry", copy.routing_key, "", delay, 1)
        if ms < 0:
            return Reading("exit", copy.routing_key, queue, delay, 1)
        return Reading("publish", copy.routing_key, queue, timedelta(0), 0)

    def taps(self, params: Params) -> Sequence[Tap]:
        """A tap is bound as the real queues are, so that it sees what comes out."""
        keys = params.keys if params.type == "direct" else ("#",)
        return [Tap(params.name, key, f"what arrives with {key}", "exit") for key in keys]

    def consumer_example(self, params: Params) -> str:
        return (
            "channel.confirm_delivery()\n"
            "channel.basic_publish(\n"
            f"    {json.dumps(params.name, ensure_ascii=False)},\n"
            f"    {json.dumps(params.keys[0], ensure_ascii=False)},\n"
            "    body,\n"
            f'    pika.BasicProperties(delivery_mode=2, headers={{"{DELAY_HEADER}": ms}}),\n'
            "    mandatory=False,  # a delayed message would come back although it is kept\n"
            ")\n"
        )


delayed_exchange = DelayedExchange()


def _is_pattern(key: str) -> bool:
    return not {"*", "#"}.isdisjoint(key.split("."))


def _stated_ms(headers: Headers) -> int:
    """0 for what is no delay of the plugin's, before or after it."""
    stated = headers.get(DELAY_HEADER)
    if not isinstance(stated, int) or isinstance(stated, bool):
        return 0
    return stated if abs(stated) <= LONGEST_DELAY_MS else 0
