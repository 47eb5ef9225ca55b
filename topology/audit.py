"""Writing the audit log: what was done, also when it failed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, TypeAlias, TypedDict, Unpack

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.http import HttpRequest
from django.utils import timezone

from topology.database.errors import try_write
from topology.models import AuditEntry, Broker

Actor: TypeAlias = AbstractBaseUser | AnonymousUser | None
# Outcome of an action that has not ended, or whose process died.
BEGUN = "begun"
# Attribute of an account and of an audit entry: the name of the API token that acts.
ACTS_BY = "token"
# Bits of an IPv6 address that name one customer (RFC 6177: providers give a /64 at least).
NETWORK_BITS = 64
NOT_WRITTEN = (
    "Delayboard cannot write the audit log now and recorded this action in the system log instead."
)


class Entry(TypedDict, total=False):
    """Optional fields of an entry. Secrets never go into `details`."""

    broker: Broker | None
    what: str
    outcome: str
    details: Mapping[str, Any] | None


def record(user: Actor, action: str, **entry: Unpack[Entry]) -> AuditEntry:
    """Add an entry, with the outcome "done" by default. `user` None is Delayboard itself."""
    is_account = user is not None and user.is_authenticated
    broker = entry.get("broker")
    token: str = getattr(user, ACTS_BY, "")
    return AuditEntry.objects.create(
        user_id=user.pk if is_account and user else None,
        username=user.get_username() if is_account and user else "delayboard",
        action=action,
        broker=broker,
        broker_name=broker.name if broker else "",
        what=entry.get("what", "")[:500],
        outcome=entry.get("outcome", "done")[:500],
        details=dict(entry.get("details") or {}) | ({ACTS_BY: token} if token else {}),
    )


def try_record(user: Actor, action: str, **entry: Unpack[Entry]) -> bool:
    """Add an entry that is not required; False, with a log line, when the database refuses it.

    For sign-in, sign-out and lists. An action that shows a whole message or changes anything uses
    `record` or `recorded`: without the entry the action is refused.
    """
    broker, details = entry.get("broker"), entry.get("details")
    name = user.get_username() if user is not None and user.is_authenticated else "delayboard"
    where = f" at {broker.name}" if broker is not None else ""
    added = f", {json.dumps(details, default=str, ensure_ascii=False)}," if details else ""
    return try_write(
        f"The audit entry “{action} {entry.get('what', '')}” of {name}{where}{added}",
        lambda: record(user, action, **entry),
        # An action without an account is a guesser's, who must not fill the log.
        is_audit=user is not None,
    )


@contextmanager
def recorded(
    user: Actor,
    action: str,
    *,
    broker: Broker | None = None,
    what: str = "",
    details: Mapping[str, Any] | None = None,
) -> Iterator[AuditEntry]:
    """Record an action before its block runs, and its outcome afterwards. Errors are raised again.

    The block may complete `details`, and set another `outcome` of the entry than “done”. It does
    not run when the entry cannot be written.
    """
    entry = record(user, action, broker=broker, what=what, outcome=BEGUN, details=details)
    try:
        yield entry
    except Exception as error:
        _end(entry, f"failed: {error}", details)
        raise
    _end(entry, "done" if entry.outcome == BEGUN else entry.outcome, details)


def end_interrupted(action: str, broker: Broker, what: str) -> None:
    """Complete the entry of an action that a killed process began, and that another one
    continues.
    """
    begun = AuditEntry.objects.filter(action=action, broker=broker, what=what, outcome=BEGUN)
    begun.update(outcome="interrupted: its process ended")


def _end(entry: AuditEntry, outcome: str, details: Mapping[str, Any] | None) -> None:
    rows = AuditEntry.objects.filter(pk=entry.pk)
    name = f"The end of the audit entry “{entry.action} {entry.what}” of {entry.username}"
    where = f" at {entry.broker_name}" if entry.broker_name else ""
    token = {ACTS_BY: entry.details[ACTS_BY]} if ACTS_BY in entry.details else {}
    try_write(
        f"{name}{where}, “{outcome[:500]}”,",
        lambda: rows.update(outcome=outcome[:500], details=dict(details or {}) | token),
        is_audit=True,
    )


def signed_in(
    sender: Any, user: AbstractBaseUser, request: HttpRequest | None = None, **kwargs: Any
) -> None:
    """Receives Django's signal."""
    try_record(user, "signed in", details={"address": client_address(request)})


def signed_out(sender: Any, user: AbstractBaseUser | None, **kwargs: Any) -> None:
    """Receives Django's signal; `user` is None when the session had ended before."""
    if user is not None:
        try_record(user, "signed out")


def refused(
    sender: Any,
    credentials: Mapping[str, Any],
    request: HttpRequest | None = None,
    **kwargs: Any,
) -> None:
    """Receives Django's signal for a wrong name or password; one that is locked is not refused."""
    # The name is the guesser's choice: an entry for each name would fill the log during a lock.
    if not getattr(request, "axes_locked_out", False):
        name = str(credentials.get("username", ""))[:500]
        _record_once("sign-in refused", name, request, "refused", what=name)


def locked_out(
    sender: Any, username: str | None, request: HttpRequest | None = None, **kwargs: Any
) -> None:
    """Receives the signal of django-axes for a sign-in that comes after too many failures."""
    _record_once("sign-in locked", username or "", request, "locked")


def _record_once(
    action: str, name: str, request: HttpRequest | None, outcome: str, **same: str
) -> None:
    """One entry in a quarter of an hour for an address, and for what else is the `same`."""
    address = client_address(request)
    recent = AuditEntry.objects.filter(
        at__gte=timezone.now() - settings.AXES_COOLOFF_TIME,
        action=action,
        details__address=address,
        **same,
    )
    if not recent.exists():
        try_record(None, action, what=name, outcome=outcome, details={"address": address})


def client_address(request: HttpRequest | None) -> str | None:
    """The IPv4 address, or the network's first of an IPv6 address; None when there is none.

    Headers are not read: behind a proxy uvicorn has put the client's address in its place,
    if it trusts the proxy (FORWARDED_ALLOW_IPS).
    """
    text = request.META.get("REMOTE_ADDR", "") if request is not None else ""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, NETWORK_BITS), strict=False).network_address)
