"""The tables of rules of definitions and of live numbers, in the order of rules.toml."""

from __future__ import annotations

from topology.findings.finding import TEXTS, Rule
from topology.findings.rules import (
    at_least_once,
    copies,
    cycles,
    dead_letter_routes,
    levels,
    live,
    live_consumers,
    live_delays,
    settings,
    taps,
    waiting,
)

_MODULES = (
    at_least_once,
    copies,
    cycles,
    dead_letter_routes,
    levels,
    live,
    live_consumers,
    live_delays,
    settings,
    taps,
    waiting,
)
_RULES = {
    one.id: one for module in _MODULES for one in vars(module).values() if isinstance(one, Rule)
}
RULES = tuple(_RULES[number] for number in TEXTS if number.startswith("F"))
# `lint` leaves these out: they change from one moment to the next.
LIVE_RULES = tuple(_RULES[number] for number in TEXTS if number.startswith("L"))
