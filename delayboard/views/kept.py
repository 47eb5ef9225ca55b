"""What is kept for how long, what there is of it, and when it was last cleaned."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_safe

from analytics.disk import room
from analytics.retention.holdings import holdings
from delayboard.dead_letters.keeping import RULES, SIZE
from delayboard.dead_letters.keeping import held as letters_held
from delayboard.dead_letters.replay.forget import replays_held
from delayboard.models.duty import CLEANING, Duty
from delayboard.publishing.forget_timeouts import imports_held
from topology.access import may
from topology.models import Role


@require_safe
def kept(request: HttpRequest) -> HttpResponse:
    duty = Duty.objects.filter(key=CLEANING).first()
    details: Mapping[str, Any] = duty.details if duty else {}
    removed = details.get("removed") or {}
    stores = (*holdings(_now()), imports_held(), replays_held())
    letters = letters_held(_number(details, "letters_bytes"))
    context = {
        "holdings": [(held, removed.get(held.rule.setting, 0)) for held in stores],
        "letters": letters,
        "letters_rules": [
            (rule, letters.numbers[state], letters.oldest[state], removed.get(rule.setting, 0))
            for state, rule in RULES.items()
        ],
        "letters_removed": removed.get(SIZE, 0),
        "duty": duty,
        "cleaned_at": _moment(details, "cleaned_at"),
        "removed_at": _moment(details, "removed_at"),
        "disk": room(settings.EVENT_LOG),
        "log": settings.EVENT_LOG if may(request.user, None, Role.VIEWER) else "",
    }
    return render(request, "delayboard/kept.html", context)


def _now() -> datetime:
    return datetime.now(UTC)


def _number(details: Mapping[str, Any], name: str) -> int | None:
    number = details.get(name)
    return number if isinstance(number, int) else None


def _moment(details: Mapping[str, Any], name: str) -> datetime | None:
    text = details.get(name)
    return parse_datetime(text) if isinstance(text, str) else None
