"""Refuses sign-ins after too many wrong passwords: django-axes with a limit for each rule.

Counts are rows in the database. While it takes no writes they are kept in this process's
memory, so that a full disk neither fails a sign-in nor leaves guessing without a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from math import ceil
from threading import Lock
from typing import Any

from axes.handlers.database import AxesDatabaseHandler
from axes.handlers.proxy import AxesProxyHandler
from axes.helpers import (
    get_cache,
    get_cache_timeout,
    get_client_cache_keys,
    get_credentials,
)
from axes.models import AccessLog
from axes.signals import user_locked_out
from django import db
from django.conf import settings
from django.contrib.auth.models import AbstractUser, User, update_last_login
from django.db.models import Max, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from topology import audit
from topology.audit import client_address
from topology.database.errors import note_refusal, try_write, waiting_briefly

Parameters = list[str | list[str]]
# Failures in AXES_COOLOFF_TIME. An office behind one address has many people; a whole account is
# closed late, and never to an address that it signed in from.
PAIR_LIMIT, ADDRESS_LIMIT, ACCOUNT_LIMIT = settings.AXES_FAILURE_LIMIT, 30, 60
KNOWN_DAYS = 30
# Lock from the check of the limits until a failure is counted: guesses at once would pass a limit.
CHECKING = Lock()


class Throttle(AxesDatabaseHandler):
    """Counts by account and address, by address, and by account."""

    def get_failures(
        self, request: HttpRequest, credentials: Mapping[str, Any] | None = None
    ) -> int:
        """The greatest count of a rule, as its share of the limit for an account and address."""
        counts = self._counts(request, credentials)
        return max(count * PAIR_LIMIT // limit for count, limit, _ in counts)

    def retry_at(self, request: HttpRequest, credentials: Mapping[str, Any] | None) -> datetime:
        """When the last rule that refuses the sign-in ends, at the latest."""
        refusing = [
            last for count, limit, last in self._counts(request, credentials) if count >= limit
        ]
        known = [last for last in refusing if last is not None]
        # What is only in memory has no moment.
        last = max(known) if known and len(known) == len(refusing) else timezone.now()
        return last + settings.AXES_COOLOFF_TIME

    def user_login_failed(
        self,
        sender: Any,
        credentials: dict[str, Any],
        request: HttpRequest | None = None,
        **kwargs: Any,
    ) -> None:
        if getattr(request, "axes_locked_out", False):
            _refuse(request, credentials)
            return
        try:
            with waiting_briefly():
                super().user_login_failed(sender, credentials, request, **kwargs)
        except db.Error as error:
            if request is None or not note_refusal("A failed sign-in", error):
                raise
            cache, seconds = get_cache(), get_cache_timeout(request)
            for key in get_client_cache_keys(request, credentials):
                # The time begins with the first failure and is not renewed.
                cache.add(key, 0, seconds)
                # It may have expired just now.
                with suppress(ValueError):
                    cache.incr(key)
            if self.is_locked(request, credentials):
                _refuse(request, credentials)

    def user_logged_in(
        self, sender: Any, request: HttpRequest, user: AbstractUser, **kwargs: Any
    ) -> None:
        """Forget the failures of the account at this address; remember the address."""
        note = super().user_logged_in

        def write() -> None:
            note(sender, request, user, **kwargs)
            self.reset_logs(age_days=KNOWN_DAYS)

        # Also while the database takes no writes.
        pair = get_client_cache_keys(request, get_credentials(user.get_username()))[0]
        get_cache().delete(pair)
        try_write("The address of a sign-in", write)

    def user_logged_out(
        self, sender: Any, request: HttpRequest, user: AbstractUser | None, **kwargs: Any
    ) -> None:
        """Nothing is counted."""

    def reset_user_attempts(
        self, request: HttpRequest, credentials: Mapping[str, Any] | None = None
    ) -> int:
        """Forget the pair alone: an account of one's own must not reset an address."""
        pair = self.filter_user_attempts(request, credentials)[0]
        return int(pair.delete()[0])

    def reset_attempts(self, **wanted: Any) -> int:
        """Called by the commands axes_reset, axes_reset_username and axes_reset_ip."""
        count = int(super().reset_attempts(**wanted))
        given = [str(wanted[name]) for name in ("username", "ip_address") if wanted.get(name)]
        audit.record(None, "sign-in unlocked", what=", ".join(given) or "all")
        return count

    def _counts(
        self, request: HttpRequest, credentials: Mapping[str, Any] | None
    ) -> Iterator[tuple[int, int, datetime | None]]:
        """Failures, limit, and time of the last failure for each rule."""
        rules = self.get_user_attempts(request, credentials)
        kept = get_cache().get_many(keys := get_client_cache_keys(request, credentials))
        limits = (PAIR_LIMIT, ADDRESS_LIMIT, ACCOUNT_LIMIT)
        for attempts, key, limit in zip(rules, keys, limits, strict=False):
            found = attempts.aggregate(count=Sum("failures_since_start"), last=Max("attempt_time"))
            in_memory = kept.get(key, 0)
            yield (found["count"] or 0) + in_memory, limit, None if in_memory else found["last"]


def _refuse(request: Any, credentials: dict[str, Any]) -> None:
    """Answer the sign-in with the page of the lock, and add an audit entry."""
    request.axes_locked_out = True
    request.axes_credentials = credentials
    user_locked_out.send(
        "axes",
        request=request,
        username=credentials.get("username"),
        ip_address=request.axes_ip_address,
    )


def rules(request: HttpRequest, credentials: Mapping[str, Any] | None) -> Parameters:
    """AXES_LOCKOUT_PARAMETERS: the whole account last, and not for an address that it uses."""
    by_address: Parameters = [["username", "ip_address"], "ip_address"]
    username = (credentials or {}).get("username")
    known = AccessLog.objects.filter(
        username=username,
        ip_address=client_address(request),
        attempt_time__gte=timezone.now() - timedelta(days=KNOWN_DAYS),
    )
    return by_address if known.exists() else [*by_address, "username"]


def note_last_login(sender: Any, user: User, **kwargs: Any) -> None:
    """Receives Django's signal, in the place of `update_last_login`, which may not be written."""
    try_write("The time of the last sign-in", lambda: update_last_login(sender, user))


def show_locked(
    request: HttpRequest, response: HttpResponse | None, credentials: Mapping[str, Any] | None
) -> HttpResponse:
    """AXES_LOCKOUT_CALLABLE: status 429 with the moment of the next try."""
    retry_at = AxesProxyHandler.get_implementation().retry_at(request, credentials)
    seconds = max(1, ceil((retry_at - timezone.now()).total_seconds()))
    context = {
        "retry_at": retry_at,
        "minutes": ceil(seconds / 60),
        "address": client_address(request),
    }
    page = render(request, "registration/locked.html", context, status=429)
    page["Retry-After"] = str(seconds)
    return page
