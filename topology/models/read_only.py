"""The read-only switches: of the site, and of a broker. They are checked where a change passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.conf import settings
from django.db import models

from topology.broker.errors import BrokerError

_finishing: ContextVar[bool] = ContextVar("finishing", default=False)


class ReadOnly(BrokerError):
    """A change is refused by a switch; the message names it and who can end it."""

    retry_helps = True


class SiteSwitch(models.Model):
    """A switch of the whole site; it is off without a row."""

    name = models.CharField(max_length=30, unique=True)
    changed_at = models.DateTimeField(auto_now=True)
    username = models.CharField(max_length=150)

    def __str__(self) -> str:
        return self.name


READ_ONLY = "read_only"


def site_reason() -> str:
    """Why the whole site is read-only, "" when it is not."""
    if settings.READ_ONLY:
        return "Delayboard is read-only by the setting READ_ONLY."
    switch = SiteSwitch.objects.filter(name=READ_ONLY).first()
    if switch is None:
        return ""
    return (
        f"{switch.username} set Delayboard to read-only at {switch.changed_at:%Y-%m-%d %H:%M} UTC."
    )


def read_only_reason(broker_id: int | None) -> str:
    """Why nothing may be changed at this broker, "" when it may; None asks for the site alone."""
    if reason := site_reason():
        return reason
    # Models of one module cannot import each other in a circle.
    from topology.models.broker import Broker

    names = Broker.objects.filter(pk=broker_id or 0, is_read_only=True)
    name = names.values_list("name", flat=True).first()
    return f"{name} is read-only." if name else ""


def refuse_read_only(broker_id: int | None, *, is_beginning: bool = False) -> None:
    """Raises ReadOnly. Called before each change of a broker's structure or messages.

    What begins is refused within `finishing` too.
    """
    if (is_beginning or not _finishing.get()) and (reason := read_only_reason(broker_id)):
        raise ReadOnly(f"{reason} An administrator can end this.")


@contextmanager
def finishing() -> Iterator[None]:
    """A block that may go on: it holds messages on their way, or keeps a recording on."""
    token = _finishing.set(True)
    try:
        yield
    finally:
        _finishing.reset(token)
