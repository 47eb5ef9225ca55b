"""The rules: of definitions, and of live numbers, in the order of rules.toml."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from topology.findings.finding import TEXTS, Rule

_MODULES = [import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__)]
_RULES = {
    one.id: one for module in _MODULES for one in vars(module).values() if isinstance(one, Rule)
}
RULES = tuple(_RULES[number] for number in TEXTS if number.startswith("F"))
# `lint` leaves these out: they change from one moment to the next.
LIVE_RULES = tuple(_RULES[number] for number in TEXTS if number.startswith("L"))
