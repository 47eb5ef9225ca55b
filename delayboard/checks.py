"""Django's system checks: settings that cannot be meant, said before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from analytics.retention.rules import RULES, BadSetting
from delayboard.dead_letters.keeping import RULES as LETTERS
from delayboard.dead_letters.keeping import limit_bytes
from delayboard.dead_letters.replay.forget import REPLAYS
from delayboard.publishing.forget_timeouts import IMPORTS
from topology.broker.answers import max_bytes
from topology.broker.errors import Unsupported


@register()
def check_numbers(**options: Any) -> list[CheckMessage]:
    errors: list[CheckMessage] = []
    now = datetime.now(UTC)
    rules = (*RULES, *LETTERS.values(), REPLAYS, IMPORTS)
    cutoffs: list[Callable[[], object]] = [partial(rule.cutoff, now) for rule in rules]
    for read in (*cutoffs, limit_bytes, max_bytes):
        try:
            read()
        except (BadSetting, Unsupported) as error:
            errors.append(Error(str(error), id="delayboard.E001"))
    return errors


@register()
def check_sessions(**options: Any) -> list[CheckMessage]:
    lifetimes = {
        "SESSION_IDLE_MINUTES": settings.SESSION_COOKIE_AGE,
        "SESSION_MAX_HOURS": settings.SESSION_MAX_HOURS,
    }
    return [
        Error(f"{name} must be more than 0: nobody could stay signed in.", id="delayboard.E002")
        for name, value in lifetimes.items()
        if value <= 0
    ]
