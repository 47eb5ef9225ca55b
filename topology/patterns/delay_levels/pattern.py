"""Delay levels: a chain of queues whose TTLs are powers of two; a key with the delay in binary.

The routing key has the bits of the delay, highest first, then the destination. Each level has an
exchange for its bit: a 1 leads into its queue, which dead-letters into the next level's exchange,
and a 0 leads there at once. Level 0 leads to the delivery exchange, where each destination is bound
with `#.<destination>`. An at-least-once level stops at 32 messages that have no route
(rabbit_fifo_dlx_worker.erl, NServiceBus #1407).
Source: seed 001; names and arguments of the presets as NServiceBus.RabbitMQ 4.3 to 11 and
kombu 5.5 declare them (DelayInfrastructure.cs, native_delayed_delivery.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

from topology.clients.describe import count_failures
from topology.deaths import newest_death
from topology.definitions import Binding, Definitions, is_own_queue, is_tap
from topology.message import Route
from topology.patterns.delay_levels import params as parameters
from topology.patterns.delay_levels.params import Params, delivery_name, level_name, next_name
from topology.patterns.names import LONGEST_NAME_BYTES, byte_length
from topology.patterns.pattern import MADE_UP, Code, ParamsError, Pattern, Use, too_long
from topology.structure.copies import Copy, Reading, Tap

# Most digits of milliseconds: RabbitMQ refuses longer expirations.
LONGEST_NUMBER = 12


class DelayLevels(Pattern, parts=(parameters,)):
    EXAMPLE = Params("own", "shop", 4)
    CHANGE_OBSTACLE = ""
    OFFERS_MIGRATION = True
    KEYS_DIFFER_BY_DELAY = True
    destinations = staticmethod(parameters.destinations)
    title = staticmethod(parameters.title)

    def recognize(self, found: Definitions) -> Sequence[Use]:
        """Uses of which at least half is there."""
        uses = [(use, self.definitions(use.params)) for use in super().recognize(found)]
        return [
            use
            for use, wanted in uses
            if 2 * len(found.only(one.identity for one in wanted)) >= len(wanted)
        ]

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Into the level of the highest bit, for none into level 0; the target is bound first.

        Celery enters at its highest level whatever the delay (app/base.py, 5.7.0); so does this.
        """
        key = routing_key(params, delay, target)
        units = count_units(params, delay)
        enters_at_top = params.preset == "celery" and units
        first = params.levels - 1 if enters_at_top else max(0, units.bit_length() - 1)
        is_queue = params.destinations == "queues"
        bound = Binding(delivery_name(params), target, f"#.{target}", destination_is_queue=is_queue)
        return Route(level_name(params, first), key, declares=Definitions.of([bound]))

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return count_units(params, delay) * params.unit

    def waits(self, params: Params, delay: timedelta) -> Sequence[timedelta]:
        """One for each 1 among the bits, the longest first."""
        units = count_units(params, delay)
        levels = reversed(range(params.levels))
        return [params.unit * 2**level for level in levels if units >> level & 1]

    def longest(self, params: Params) -> timedelta:
        return params.maximum

    def binds_again(self, params: Params) -> str:
        """What kombu and NServiceBus do at a start; the latter binds the destination before each
        delayed message too (IRoutingTopology.BindToDelayInfrastructure): the queue itself, or its
        exchange.
        """
        match params.preset, params.destinations:
            case "celery", _:
                return "a Celery worker starts"
            case "nsb-v1" | "nsb-v2", "exchanges":
                return "an NServiceBus endpoint starts"
            case "nsb-v1" | "nsb-v2", _:
                return "an NServiceBus endpoint starts or sends a delayed message to this queue"
        return ""

    def exit_of(self, params: Params, destination: str) -> tuple[str, str]:
        return delivery_name(params), "0." * params.levels + destination

    def targets(self, params: Params) -> Sequence[str]:
        return ()

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        """`#.B` matches the keys of every destination that ends in `.B` too (topic rules)."""
        words = target.split(".")
        if not target:
            return "The destination is missing. Enter a queue or an exchange."
        if is_own_queue(target):
            return "Delayboard uses this queue itself. Enter another destination."
        if "*" in words or "#" in words:
            return (
                "A destination with the word “*” or “#” would receive messages of other "
                "destinations."
            )
        for binding in self.destinations(params, found):
            other = _target_of(binding)
            if other != target and _is_end(target, other):
                return (
                    f"The destination “{other}” ends with this name, so this destination would "
                    "receive its messages too."
                )
            if other != target and _is_end(other, target):
                return (
                    f"This destination ends with “{other}”, so “{other}” would receive these "
                    "messages too."
                )
        return ""

    def trials(self, params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
        """One step and the longest way, to each bound destination or to a made-up one.

        A destination that is an exchange counts by whatever queue is behind it.
        """
        bound = self.destinations(params, found)
        names = [_target_of(binding) for binding in bound] or [MADE_UP]
        ends = [b.destination if b.destination_is_queue else "" for b in bound] or [MADE_UP]
        return [
            (delay, name, end)
            for name, end in zip(names, ends, strict=True)
            for delay in (params.unit, params.maximum)
        ]

    def probe_obstacle(self, params: Params, found: Definitions) -> str:
        return ""

    def probe_bindings(self, params: Params, probe: str) -> Sequence[Binding]:
        return [Binding(delivery_name(params), probe, f"#.{probe}")]

    def probe_route(self, params: Params, delay: timedelta, probe: str) -> Route:
        return replace(self.route(params, delay, probe), declares=Definitions())

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        sentences = []
        for binding in self.destinations(params, found):
            target = _target_of(binding)
            problem = self.target_problem(params, target, found)
            if problem:
                sentences.append(f"Destination “{target}”: {problem}")
        sentences += [text for name in params.exit_taps if (text := _tap_remark(name, found))]
        if params.is_at_least_once:
            unless = f" except to {', '.join(params.exit_taps)}" if params.exit_taps else ""
            sentences.append(
                f"Deliveries are not observed{unless}. A tap alone at the delivery exchange would "
                "make a level drop messages whose destination is missing."
            )
        return sentences

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """A copy at the exchange below the lowest 1 is an exit, one at or above the highest
        an entry.

        What passes on between exchanges keeps the name of the one it was published to or died into:
        after an even delay the delivery exchange sees it with that of a level.
        """
        bits, target = split_key(params, copy.routing_key)
        if not bits:
            return None
        units = int(bits, 2)
        delay, death = units * params.unit, newest_death(copy.headers) or ("", "")
        names = _names(params)
        level = names.get(copy.exchange, -1)
        highest = max(0, units.bit_length() - 1)
        if not units:
            is_passing = level >= highest or copy.exchange == delivery_name(params)
            return Reading("publish", target, target, delay, 0, *death) if is_passing else None
        lowest = (units & -units).bit_length() - 1
        if copy.exchange in (next_name(params, lowest), delivery_name(params)):
            attempt = count_failures(copy.headers, target) or 1
            return Reading("exit", target, target, delay, attempt, *death)
        if level >= highest:
            attempt = count_failures(copy.headers, target) or 1
            delay -= _find_saved(copy.expiration, params.unit * 2**highest)
            return Reading("entry", target, level_name(params, highest), delay, attempt, *death)
        return None

    def taps(self, params: Params) -> Sequence[Tap]:
        """An entry tap on each level's exchange; on classic levels one on the delivery exchange
        too.

        At level L the bits above are all 0 on a message that enters there and never on one in
        transit, so each delayed message is copied once, wherever it was published. An at-least-once
        set has no tap on its delivery exchange: alone there it would make a level let go of what
        it should hold for an unbound destination (tried: 3 held without, 0 with). Behind
        destinations that are exchanges a user may choose one, with the same hazard for what is
        bound to the exchange.
        """
        top = params.levels - 1
        entries = [
            Tap(level_name(params, level), "0." * (top - level) + "1.#", "entry")
            for level in reversed(range(params.levels))
        ]
        if params.is_at_least_once:
            exits = [Tap(name, "#", "exit", destination=name) for name in params.exit_taps]
            return [*entries, *exits]
        return [*entries, Tap(delivery_name(params), "#", "exit")]

    def code_values(self, params: Params) -> Mapping[str, Any]:
        number = "{level}" if params.preset == "celery" else "{level:02}"
        head = level_name(params, 0).removesuffix("0" if params.preset == "celery" else "00")
        return {
            "unit": Code(f"{params.unit / timedelta(seconds=1):g}"),
            "levels": params.levels,
            "kind": Code("queue" if params.destinations == "queues" else "exchange"),
            "delivery": delivery_name(params),
            "prefix": head,
            "number": Code(number),
        }


delay_levels = DelayLevels()


def count_units(params: Params, delay: timedelta) -> int:
    """Whole units, rounded up; a negative delay is none. Raises ParamsError over the maximum."""
    units = max(0, -(-delay // params.unit))
    if units >= 2**params.levels:
        raise too_long("this topology", params.maximum)
    return units


def routing_key(params: Params, delay: timedelta, target: str) -> str:
    """Bits from the highest level down, each with a dot, then the target.

    Raises ParamsError when the delay is over the maximum or the key would be too long.
    """
    units = count_units(params, delay)
    bits = "".join(f"{units >> level & 1}." for level in reversed(range(params.levels)))
    key = bits + target
    if byte_length(key) > LONGEST_NAME_BYTES:
        longest = LONGEST_NAME_BYTES - len(bits)
        raise ParamsError(
            {"target": f"A destination of this topology has at most {longest} bytes."}
        )
    return key


@lru_cache(maxsize=64)
def _names(params: Params) -> dict[str, int]:
    """The levels by the names of their exchanges."""
    return {level_name(params, level): level for level in range(params.levels)}


def split_key(params: Params, key: str) -> tuple[str, str]:
    """The bits without dots and the destination; ("", "") when the key is none of these levels."""
    width = 2 * params.levels
    head = key[:width]
    bits = head[::2]
    if len(head) < width or head[1::2] != "." * params.levels or bits.strip("01"):
        return "", ""
    return bits, key[width:]


def _find_saved(expiration: str | None, wait: timedelta) -> timedelta:
    """How much an expiration of the message shortens this wait, its first."""
    if expiration is None or not expiration.isdecimal() or len(expiration) > LONGEST_NUMBER:
        return timedelta(0)
    return max(timedelta(0), wait - timedelta(milliseconds=int(expiration)))


def _target_of(binding: Binding) -> str:
    """The inverse of the key that `route` binds with."""
    return binding.routing_key.removeprefix("#.")


def _tap_remark(name: str, found: Definitions) -> str:
    """What is wrong with an exit tap at this exchange; "" when nothing is."""
    exchange = found.exchange(name)
    if exchange is None:
        return f"The exchange “{name}” of an exit tap does not exist."
    if exchange.type not in ("fanout", "topic"):
        return (
            f"The exit tap receives nothing, because “{name}” is a {exchange.type} exchange, which "
            "does not copy messages with other keys."
        )
    if all(is_tap(one.destination) for one in found.leaving(name)):
        return (
            f"No queue is bound to the exchange “{name}”. Its exit tap alone takes the messages, "
            "and they are lost."
        )
    return ""


def _is_end(target: str, other: str) -> bool:
    return other.endswith(f".{target}")
