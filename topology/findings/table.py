"""The tables of rules of definitions and of live numbers, by number: the worst first."""

from __future__ import annotations

from topology.findings.finding import Rule
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

RULES: tuple[Rule, ...] = (
    dead_letter_routes.MISSING_EXCHANGE,
    dead_letter_routes.NO_ROUTE,
    waiting.DISCARDED,
    cycles.DROPPED,
    waiting.DELETED_BEFORE,
    waiting.NOT_RENEWED,
    waiting.EXPIRING_DEAD_LETTERS,
    settings.TRANSIENT,
    at_least_once.FALLEN_BACK,
    settings.MISSING_ALTERNATE,
    settings.NOT_REFUSING,
    dead_letter_routes.OLD_STREAM,
    at_least_once.REFUSED,
    taps.TAP_ALONE,
    dead_letter_routes.HELD,
    at_least_once.REFUSING,
    copies.DUPLICATED,
    copies.GIVEN_TO_OTHERS,
    waiting.BOUNDED,
    waiting.PRIORITISED,
    waiting.SHORTENED,
    levels.INCOMPLETE,
    cycles.AT_ONCE,
    at_least_once.UNBOUNDED,
    at_least_once.UNSAFE,
    cycles.POISON,
    cycles.FOR_EVER,
    settings.WITHOUT_EFFECT,
    waiting.KEPT_FOR_A_TIME,
    settings.DELAYED_EXCHANGE,
)

# `lint` leaves these out: they change from one moment to the next.
LIVE_RULES: tuple[Rule, ...] = (
    live_consumers.LIMIT,
    live.STUCK,
    live_delays.NOT_DRAINING,
    live_consumers.CONSUMED_DELAY,
    live.SLOW,
    live_delays.BLOCKED,
    live_consumers.CRASH_LOOP,
    live_consumers.GROWING_RETRIES,
    live.GROWING,
    live.BEHIND,
    live.UNREAD,
    live_delays.UNCONSUMED,
)
