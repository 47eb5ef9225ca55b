"""The address that the worker calls while it works: a monitor alerts when the calls end.

For Healthchecks, Cronitor, Uptime Kuma and others that take a plain GET.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from datetime import datetime, timedelta
from http.client import HTTPException
from urllib.parse import urlsplit

from delayboard.alerts.messages import AddressRefused
from delayboard.models.alert import Heartbeat
from delayboard.models.background_task import BackgroundTask

TIMEOUT_SECONDS = 10
LONGEST_ADDRESS = 1000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another host must not learn the address, which is a secret."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def check_heartbeat_address(text: str) -> tuple[str, str]:
    """The address and its host, which pages show. Raises AddressRefused."""
    address = text.strip()
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    is_web = address.startswith(("http://", "https://")) and address.isascii()
    if not host or not is_web or " " in address or len(address) > LONGEST_ADDRESS:
        raise AddressRefused("Enter an address such as https://hc-ping.com/your-uuid.")
    return address, host


def call(address: str) -> str:
    """Send a GET; "" or why it was not accepted, without the address."""
    opener = urllib.request.build_opener(_NoRedirects)
    request = urllib.request.Request(address, headers={"User-Agent": "Delayboard"})
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"The service answered with {error.code}."
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return f"The service did not answer: {type(reason).__name__}."


def call_due(now: datetime) -> None:
    """Call the address when its time has come and every background task has a heartbeat.

    A task that hangs ends the calls, and so does a worker that is not running.
    """
    row = Heartbeat.objects.first()
    if row is None:
        return
    due_at = row.called_at + timedelta(seconds=row.every_seconds) if row.called_at else now
    if now < due_at or any(task.is_late for task in BackgroundTask.objects.all()):
        return
    try:
        error = call(row.address)
    except ValueError as wrong:
        error = str(wrong)
    Heartbeat.objects.filter(pk=row.pk).update(called_at=now, error=error[:500])
