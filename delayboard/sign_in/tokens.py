"""Tokens of the API: made, found by their secret, revoked."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Collection
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from threading import Lock

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import F, Q
from django.http import HttpRequest
from django.utils import timezone

from delayboard.models import ApiToken
from topology import access, audit
from topology.database.errors import try_write
from topology.models import Role

# Begin of a token, by which scanners for secrets recognize it.
PREFIX = "dlb_"
HINT = len(PREFIX) + 4
LONGEST_NAME, MOST_ADDRESSES = 60, 20
LONGEST_DAYS = 366
# Time between two notes of the last use, each of which is a write.
NOTE_AFTER = timedelta(minutes=1)


class TokenError(ValueError):
    """The token is not valid, or cannot be made; the message says why and what to do."""


def make_token(
    user: User,
    *,
    name: str,
    role: Role,
    brokers: Collection[int] | None,
    days: int,
    addresses: str = "",
) -> tuple[ApiToken, str]:
    """Store a token of this account; returns it with its secret, which nobody can read again.

    `brokers` are ids, None for all. Raises TokenError.
    """
    name = name.strip()
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise TokenError(f"Enter a name with 1 to {LONGEST_NAME} characters.")
    if ApiToken.objects.filter(user=user, name=name, revoked_at=None).exists():
        raise TokenError(f"You have a token “{name}” already. Enter another name.")
    held = max((grant for _, grant in access.read_rights(user)), default=0)
    if role > held:
        raise TokenError(f"You do not have the role {role.label.lower()}. Select a lower role.")
    if brokers is not None:
        visible = access.visible_brokers(user, role).filter(pk__in=brokers)
        if not brokers or visible.count() < len(set(brokers)):
            raise TokenError("Select brokers on which you have this role, or every broker.")
    if not 1 <= days <= LONGEST_DAYS:
        raise TokenError(f"Enter 1 to {LONGEST_DAYS} days until the token expires.")
    secret = PREFIX + secrets.token_urlsafe(32)
    token = ApiToken(
        user=user,
        name=name,
        digest=_digest(secret),
        hint=secret[:HINT],
        role=role,
        broker_ids=None if brokers is None else sorted(set(brokers)),
        addresses=_read_addresses(addresses),
        expires_at=timezone.now() + timedelta(days=days),
    )
    details = {"role": role.label, "brokers": token.broker_ids, "addresses": token.addresses}
    with audit.recorded(user, "token created", what=name, details=details):
        token.save()
    return token, secret


def revoke_token(actor: User, token: ApiToken) -> None:
    with audit.recorded(actor, "token revoked", what=f"{token.name} of {token.user}"):
        ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())


def find_token(request: HttpRequest) -> ApiToken:
    """The token of `Authorization: Bearer …`; its user has the token's rights. Raises TokenError.

    No other sign-in counts.
    """
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise TokenError("Send a token: “Authorization: Bearer …”. You make one under Tokens.")
    rows = ApiToken.objects.select_related("user").filter(revoked_at=None, user__is_active=True)
    token = rows.filter(digest=_digest(secret.strip())).first()
    now = timezone.now()
    if token is None or token.expires_at <= now:
        raise TokenError("The token does not exist, is revoked or has expired. Make another one.")
    _require_sign_in(token.user, now)
    address = audit.client_address(request) or ""
    if not _is_allowed(token.addresses, request.META.get("REMOTE_ADDR", "")):
        raise TokenError("The token does not accept your address. Change its list of addresses.")
    if token.used_at is None or now - token.used_at > NOTE_AFTER or token.used_from != address:
        _note_use(token, now, address)
    access.limit_grants(token.user, Role(token.role), token.broker_ids)
    setattr(token.user, audit.ACTS_BY, token.name)
    return token


def _require_sign_in(user: User, now: datetime) -> None:
    """Raises TokenError for whom a provider or a proxy has not signed in for long.

    Neither says that somebody has left.
    """
    longest = timedelta(days=settings.TOKEN_SIGN_IN_DAYS)
    if user.has_usable_password() or (user.last_login and now - user.last_login <= longest):
        return
    raise TokenError(
        f"The owner of the token has not signed in for {settings.TOKEN_SIGN_IN_DAYS:g} days. It "
        "works again after the next sign-in."
    )


def _note_use(token: ApiToken, now: datetime, address: str) -> None:
    rows = ApiToken.objects.filter(Q(used_at=None) | Q(used_at__lt=now), pk=token.pk)
    values = {"used_at": now, "used_from": address}
    try_write("The last use of a token", lambda: rows.update(**values))


# Digest of a token -> minute, and requests that are left to this process in it.
_shares: dict[str, tuple[int, int]] = {}
_SHARES = Lock()


def take_request(token: ApiToken, most: int) -> bool:
    """Whether the token may send another request in this minute; all processes together `most`.

    The count is in the database. A process takes a part of the minute at once, since each taking is
    a write; while the database takes none, nobody is refused.
    """
    minute, share = int(time.time()) // 60, max(1, most // 30)
    rows = ApiToken.objects.filter(pk=token.pk)
    taken = 0

    def take() -> None:
        nonlocal taken
        rows.filter(minute__lt=minute).update(minute=minute, requests=0)
        free = rows.filter(requests__lte=most - share)
        taken = free.update(requests=F("requests") + share)

    with _SHARES:
        known, left = _shares.get(token.digest, (0, 0))
        if known != minute or not left:
            is_refused = try_write("The requests of a token", take) and not taken
            # For the rest of the minute, without a write for each refusal.
            left = -1 if is_refused else share
        _shares[token.digest] = minute, max(left - 1, -1)
    return left > 0


def _digest(secret: str) -> str:
    """A secret of 256 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _read_addresses(text: str) -> str:
    found = [one.strip() for one in text.replace("\n", ",").split(",") if one.strip()]
    try:
        networks = [str(ip_network(one, strict=False)) for one in found]
    except ValueError as error:
        raise TokenError(
            "Enter addresses or networks such as 10.0.0.0/8, with commas between them."
        ) from error
    if len(networks) > MOST_ADDRESSES:
        raise TokenError(f"Enter at most {MOST_ADDRESSES} addresses.")
    return ",".join(networks)


def _is_allowed(networks: str, text: str) -> bool:
    if not networks:
        return True
    try:
        address = ip_address(text)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in ip_network(one) for one in networks.split(","))
