"""Django's system checks: settings that cannot be meant, said before anything starts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.core.checks import CheckMessage, Error, register

from analytics.retention.rules import RULES, BadSetting


@register()
def check_retention(**options: Any) -> list[CheckMessage]:
    errors: list[CheckMessage] = []
    for rule in RULES:
        try:
            rule.cutoff(datetime.now(UTC))
        except BadSetting as error:
            errors.append(Error(str(error), id="delayboard.E001"))
    return errors
