"""Writing the audit log: what was done, also when it failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from topology.models import AuditEntry, Broker


def record(
    user: AbstractBaseUser | AnonymousUser | None,
    action: str,
    *,
    broker: Broker | None = None,
    what: str = "",
    outcome: str = "done",
    details: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Add an entry. `user` None is Delayboard itself. Secrets never go into `details`."""
    is_account = user is not None and user.is_authenticated
    return AuditEntry.objects.create(
        user_id=user.pk if is_account and user else None,
        username=user.get_username() if is_account and user else "delayboard",
        action=action,
        broker=broker,
        broker_name=broker.name if broker else "",
        what=what[:500],
        outcome=outcome[:500],
        details=dict(details or {}),
    )


@contextmanager
def recorded(
    user: AbstractBaseUser | AnonymousUser | None,
    action: str,
    *,
    broker: Broker | None = None,
    what: str = "",
    details: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Record the block's action with how it ended; an error is recorded and goes on."""
    try:
        yield
    except Exception as error:
        record(user, action, broker=broker, what=what, outcome=f"failed: {error}", details=details)
        raise
    record(user, action, broker=broker, what=what, details=details)


def signed_in(sender: Any, user: AbstractBaseUser, **kwargs: Any) -> None:
    """Receives Django's signal."""
    record(user, "signed in")


def signed_out(sender: Any, user: AbstractBaseUser | None, **kwargs: Any) -> None:
    """Receives Django's signal; `user` is None when the session had ended before."""
    if user is not None:
        record(user, "signed out")


def refused(sender: Any, credentials: Mapping[str, Any], **kwargs: Any) -> None:
    """Receives Django's signal for a wrong name or password."""
    record(None, "sign-in refused", what=str(credentials.get("username", "")), outcome="refused")
