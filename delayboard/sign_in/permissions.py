"""What a person may do on a broker, and why not: the same rules as `topology.access` enforces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User

from topology import access
from topology.models import Broker, Grant, Role
from topology.models.read_only import site_reason

# Action, its least role, and whether a read-only switch refuses it.
ACTIONS = (
    ("Read pages, messages, findings and reports; peek at queues", Role.VIEWER, False),
    ("Search message texts, export messages, mute findings, save searches", Role.OPERATOR, False),
    ("Publish messages", Role.OPERATOR, True),
    ("Park, replay, discard and restore dead letters", Role.OPERATOR, True),
    ("Cancel, reschedule and deliver waiting messages", Role.OPERATOR, True),
    ("Create, apply, edit and delete topologies, migrate delays", Role.OPERATOR, True),
    ("Import parked messages, switch the firehose", Role.ADMIN, True),
    ("Edit the broker and its redaction rules, read its audit log", Role.ADMIN, False),
)
ON_THE_SITE = (
    ("Add brokers, set up alerts, roles of groups and read-only, end sessions", Role.ADMIN),
)


@dataclass(frozen=True)
class Permission:
    """`reason` says why not; "" for what is allowed."""

    action: str
    reason: str


@dataclass(frozen=True)
class BrokerPermissions:
    """`source` says where the role comes from."""

    broker: Broker
    role: Role | None
    source: str
    permissions: Sequence[Permission]


def explain(person: User, brokers: Sequence[Broker]) -> list[BrokerPermissions]:
    """What this person may do on each broker."""
    roles = access.roles_for(person, brokers)
    grants = {grant.broker_id: grant.role for grant in Grant.objects.filter(user=person)}
    site = site_reason()
    found = []
    for broker in brokers:
        role = roles[broker.pk]
        why = site or (f"{broker.name} is read-only." if broker.is_read_only else "")
        found.append(
            BrokerPermissions(
                broker,
                role,
                _source(person, broker, role, grants),
                [
                    Permission(action, _missing(person, role, least) or (why if changes else ""))
                    for action, least, changes in ACTIONS
                ],
            )
        )
    return found


def explain_site(person: User) -> list[Permission]:
    """What this person may do that concerns all brokers, and accounts."""
    role = access.role_for(person, None)
    found = [Permission(action, _missing(person, role, least)) for action, least in ON_THE_SITE]
    may_edit = person.is_active and person.is_staff and person.has_perm("auth.change_user")
    why = "" if may_edit else "Needs an account that may enter Accounts, such as a superuser."
    return [*found, Permission("Add and change accounts", why)]


def _missing(person: User, role: Role | None, least: Role) -> str:
    if not person.is_active:
        return "The account is deactivated."
    if role is None:
        return f"Needs the role {least.label.lower()}, and the account has none here."
    if role < least:
        return f"Needs the role {least.label.lower()}. The role is {role.label.lower()}."
    return ""


def _source(person: User, broker: Broker, role: Role | None, grants: dict[int | None, int]) -> str:
    if role is None:
        return ""
    if person.is_superuser:
        return "superuser"
    where = "this broker" if grants.get(broker.pk) == role else "every broker"
    by = "" if person.has_usable_password() else ", by groups at the last sign-in"
    return f"role on {where}{by}"
