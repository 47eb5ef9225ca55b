"""Roles of accounts that a provider or a proxy signs in: by their groups, at each sign-in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from django.contrib.auth.models import User
from django.db import transaction

from delayboard.models import EVERYBODY, GroupRole
from delayboard.models.account import LONGEST_VALUE
from topology import audit
from topology.models import Grant, Role

# Id of a broker -> role; None is every broker.
Roles: TypeAlias = Mapping[int | None, int]
MOST_VALUES = 1000


class NoRole(Exception):
    """No group of the account has a role; the message explains it to the person."""


def read_values(claims: Mapping[str, Any], path: str) -> list[str]:
    """The texts of the claim at this path, such as `groups` or `realm_access.roles`.

    A name that contains dots itself, as an address has, is tried first.
    """
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    values = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    texts = (value.strip() for value in values if isinstance(value, str))
    return [text for text in texts if 0 < len(text) <= LONGEST_VALUE and text.isprintable()][
        :MOST_VALUES
    ]


def find_roles(values: Collection[str]) -> Roles:
    """The highest role on each broker that these groups give."""
    rows = GroupRole.objects.filter(value__in={*values, EVERYBODY}).order_by("role")
    return {row.broker_id: row.role for row in rows}


def require_roles(values: Collection[str], source: str) -> Roles:
    """Raises NoRole for groups without a role. `source` is the claim or the header."""
    if roles := find_roles(values):
        return roles
    if not values:
        raise NoRole(
            f"Your sign-in has no groups in “{source}”, so you have no role in Delayboard. "
            "Ask an administrator of Delayboard."
        )
    raise NoRole(
        "None of your groups has a role in Delayboard. Ask an administrator of Delayboard to "
        "add one of them under Sign-in."
    )


def give_roles(user: User, roles: Roles, groups: Iterable[str]) -> None:
    """Replace the grants of this account, with an audit entry if they change."""
    with transaction.atomic():
        held = {grant.broker_id: grant for grant in Grant.objects.filter(user=user)}
        if {broker: grant.role for broker, grant in held.items()} == roles:
            return
        before = [str(grant) for grant in held.values()]
        Grant.objects.filter(user=user).delete()
        Grant.objects.bulk_create(
            Grant(user=user, broker_id=broker, role=Role(role)) for broker, role in roles.items()
        )
        after = [str(one) for one in Grant.objects.filter(user=user).select_related("broker")]
        details = {"before": before, "after": after, "groups": sorted(groups)[:50]}
        audit.record(user, "roles set by groups", what=user.get_username(), details=details)
