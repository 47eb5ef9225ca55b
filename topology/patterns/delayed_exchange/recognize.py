"""Delayed exchange in a vhost, found by structure and by name."""

from __future__ import annotations

from collections.abc import Sequence

from topology.definitions import (
    DELAYED_TYPE,
    Definitions,
    Exchange,
    is_tap,
)
from topology.patterns.delayed_exchange.params import KIND, TYPES, Params, definitions
from topology.patterns.pattern import ParamsError, Use
from topology.patterns.uses import find_missing


def recognize(found: Definitions) -> Sequence[Use]:
    """Every exchange of the type, with its bindings."""
    names = sorted(exchange.name for exchange in found.exchanges if exchange.type == DELAYED_TYPE)
    return [_use(exchange, found) for name in names if (exchange := found.exchange(name))]


def _use(exchange: Exchange, found: Definitions) -> Use:
    """Without parameters where it chooses in another way, or leads to exchanges or nowhere."""
    bound = [b for b in found.leaving(exchange.name) if not is_tap(b.destination)]
    claims = frozenset([exchange.identity, *(binding.identity for binding in bound)])
    kind = exchange.arguments.text("x-delayed-type") or ""
    missing = (
        ()
        if bound
        else ("The exchange has no bindings, so RabbitMQ drops messages after their delay.",)
    )
    is_plain = all(b.destination_is_queue and not b.arguments for b in bound)
    if kind not in TYPES or not is_plain:
        return Use(KIND, exchange.name, None, claims, missing)
    try:
        params = Params(exchange.name, kind, tuple((b.routing_key, b.destination) for b in bound))
    except ParamsError:
        return Use(KIND, exchange.name, None, claims, missing)
    return Use(KIND, exchange.name, params, claims, find_missing(definitions(params), found))
