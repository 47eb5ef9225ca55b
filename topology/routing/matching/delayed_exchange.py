"""The rule of the exchange type x-delayed-message: how long it keeps a message, and what then.

Source: rabbitmq_delayed_message_exchange, route/2 in rabbit_exchange_type_delayed_message.erl,
rabbit_delayed_message.erl and rabbit_delayed_message_utils.erl of 3.8 to 4.2, read and not tried.
A message whose header x-delay is a number of milliseconds in bounds is put away and reaches no
queue at first, so that an alternate exchange gets a copy at once. When its time has come the
header is negated, and the exchange chooses as the type in its argument x-delayed-type does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from topology.definitions import DELAY_HEADER, DELAYED_TYPE, LONGEST_DELAY_MS, Exchange

DELAYED, HEADER, LONGEST_MS = DELAYED_TYPE, DELAY_HEADER, LONGEST_DELAY_MS
_NUMBER = re.compile(r"[+-]?[0-9]{1,255}")


def kind_of(exchange: Exchange) -> str:
    """The exchange type by which it routes; "" for a delayed exchange without one."""
    if exchange.type != DELAYED:
        return exchange.type
    return exchange.arguments.text("x-delayed-type") or ""


def delay_in_exchange_ms(exchange: Exchange, headers: Mapping[str, Any]) -> int | None:
    """How long it keeps a message with these headers before it chooses; 0: not at all.

    None for a header on which the plugin fails.
    """
    if exchange.type != DELAYED:
        return 0
    stated = _stated_ms(headers)
    return stated if stated is None or 0 < stated <= LONGEST_MS else 0


def mark_released(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """What it has after its delay, so that no delayed exchange keeps it again."""
    stated = _stated_ms(headers)
    return {**headers, HEADER: -stated} if stated else headers


def _stated_ms(headers: Mapping[str, Any]) -> int | None:
    """The delay as the plugin reads it: whole numbers, digits, and the whole part of a fraction.

    0 for what it takes for no delay, None for what it fails on.
    """
    match headers.get(HEADER):
        case bool():
            return 0
        case int(number):
            return number
        case float(number):
            return int(number) if math.isfinite(number) else None
        case str(text):
            return int(text) if _NUMBER.fullmatch(text) else None
        case bytes() | bytearray() | Decimal():
            return None
    return 0
