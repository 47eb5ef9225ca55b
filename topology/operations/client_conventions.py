"""Saving and deleting what operators declare of client libraries."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from topology import audit
from topology.access import User
from topology.clients.conventions import Convention, ConventionError, check_own
from topology.models import Broker, ClientConvention

MOST_CONVENTIONS = 20


def save_convention(user: User, broker: Broker, text: str) -> Convention:
    """Put it into force at the broker; one of the same name ends. Raises ConventionError."""
    own = check_own(text)
    with transaction.atomic():
        rows = _lock(broker)
        if sum(row.name != own.name for row in rows) >= MOST_CONVENTIONS:
            raise ConventionError(f"A broker has at most {MOST_CONVENTIONS} conventions.")
        known = [row for row in rows if row.name == own.name]
        if any(row.text == text for row in known):
            return own
        now = _retire(known)
        ClientConvention.objects.create(
            broker=broker,
            name=own.name,
            text=text,
            saved_at=now,
            saved_by_id=user.pk if user else None,
        )
        audit.record(
            user, "client convention saved", broker=broker, what=own.name, details={"text": text}
        )
    return own


def delete_convention(user: User, broker: Broker, name: str) -> None:
    """End it. Raises ConventionError where there is none of this name."""
    with transaction.atomic():
        known = [row for row in _lock(broker) if row.name == name]
        if not known:
            raise ConventionError("This convention no longer exists.")
        _retire(known)
        audit.record(user, "client convention deleted", broker=broker, what=name)


def _lock(broker: Broker) -> list[ClientConvention]:
    Broker.objects.select_for_update().get(pk=broker.pk)
    return list(ClientConvention.objects.filter(broker=broker, retired_at=None))


def _retire(rows: list[ClientConvention]) -> datetime:
    """End them now, and return this time."""
    now = timezone.now()
    ClientConvention.objects.filter(pk__in=[row.pk for row in rows]).update(retired_at=now)
    return now
