"""A failing and a passing example of each rule of findings, by its id."""

from __future__ import annotations

from tests.topology.findings.examples import (
    arguments,
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
from tests.topology.findings.examples.example import Examples

EXAMPLES: dict[str, Examples] = {
    **arguments.EXAMPLES,
    **at_least_once.EXAMPLES,
    **copies.EXAMPLES,
    **cycles.EXAMPLES,
    **dead_letter_routes.EXAMPLES,
    **levels.EXAMPLES,
    **live.EXAMPLES,
    **live_consumers.EXAMPLES,
    **live_delays.EXAMPLES,
    **settings.EXAMPLES,
    **taps.EXAMPLES,
    **waiting.EXAMPLES,
}
