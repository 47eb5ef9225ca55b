"""The time zone in which a user reads times: a row, remembered in the session."""

from __future__ import annotations

from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from django.http import HttpRequest
from django.utils import timezone

from delayboard.models import Preference

SESSION_KEY = "time_zone"


def remember(request: HttpRequest, user: Any, **_: object) -> None:
    """Store the time zone at sign-in, so that no page reads the row again."""
    found = Preference.objects.filter(user=user).values_list("time_zone", flat=True).first()
    if found:
        request.session[SESSION_KEY] = found


def choose(request: HttpRequest, name: str) -> None:
    """Store another zone of the user, "" for that of the site."""
    user: Any = request.user
    Preference.objects.update_or_create(user=user, defaults={"time_zone": name})
    request.session[SESSION_KEY] = name


def activate(request: HttpRequest) -> None:
    """Write the times of this request in the zone of its user."""
    name = request.session.get(SESSION_KEY, "")
    try:
        timezone.activate(ZoneInfo(name)) if name else timezone.deactivate()
    except (ZoneInfoNotFoundError, ValueError):
        # The system has lost this zone since it was chosen.
        timezone.deactivate()


@cache
def list_zones() -> tuple[str, ...]:
    """The names that a user can choose."""
    return tuple(sorted(available_timezones() - {"localtime", "Factory"}))
