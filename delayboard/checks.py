"""Django's system checks: invalid settings, reported before anything starts."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def check_numbers(**options: Any) -> list[CheckMessage]:
    # Imported by the processes that check.
    from analytics.retention.rules import BadSetting
    from delayboard.retention.table import RULES
    from topology.broker.errors import Unsupported
    from topology.broker.management.answers import max_bytes

    errors: list[CheckMessage] = []
    for read in (*(rule.check for rule in RULES), max_bytes):
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
        Error(
            f"{name} must be more than 0. Otherwise every session ends at once.",
            id="delayboard.E002",
        )
        for name, value in lifetimes.items()
        if value <= 0
    ]
