"""Roles by groups of the company's provider or proxy, edited in the browser."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from delayboard.models import EVERYBODY, GroupRole
from delayboard.models.account import LONGEST_VALUE
from delayboard.sign_in.provider import PROVIDER
from delayboard.views.show_refusal import show_refusal
from topology import access, audit
from topology.database.paging import row_number
from topology.models import Broker, Role


class InvalidGroup(Exception):
    """What was typed is no role of a group; the message explains it."""


@require_safe
@access.everywhere(Role.ADMIN)
def group_roles(request: HttpRequest) -> HttpResponse:
    """What signs people in, and the role of each group."""
    context = {
        "rows": GroupRole.objects.select_related("broker").order_by("value", "broker__name"),
        "brokers": Broker.objects.all(),
        "roles": Role.choices,
        "everybody": EVERYBODY,
        "is_open": GroupRole.objects.filter(value=EVERYBODY).exists(),
        "issuer": settings.OIDC_ISSUER,
        "provider": settings.OIDC_NAME,
        "scopes": " ".join(settings.OIDC_SCOPES),
        "claim": settings.OIDC_GROUPS_CLAIM,
        "callback": request.build_absolute_uri(
            reverse("openid_connect_callback", kwargs={"provider_id": PROVIDER})
        ),
        "proxies": ", ".join(map(str, settings.REMOTE_USER_PROXIES)),
        "name_header": settings.REMOTE_USER_HEADER,
        "groups_header": settings.REMOTE_USER_GROUPS_HEADER,
        "is_local": not settings.HIDE_LOCAL_SIGN_IN,
        "second_factor": settings.SECOND_FACTOR_ROLE,
    }
    return render(request, "registration/group_roles.html", context)


@require_POST
@access.everywhere(Role.ADMIN)
def group_role_change(request: HttpRequest) -> HttpResponse:
    """Add or change the role of a group, or delete the one whose id is posted as `delete`."""
    with show_refusal(request, "Nothing was changed.", InvalidGroup):
        change = _delete if "delete" in request.POST else _save
        messages.success(request, f"{change(request)} Accounts follow at their next sign-in.")
    return redirect("group_roles")


def _save(request: HttpRequest) -> str:
    """Raises InvalidGroup."""
    value = request.POST.get("value", "").strip()
    if not 0 < len(value) <= LONGEST_VALUE or "\0" in value:
        raise InvalidGroup(f"Enter the name of a group with 1 to {LONGEST_VALUE} characters.")
    roles = {str(role.value): role for role in Role}
    if (role := roles.get(request.POST.get("role", ""))) is None:
        raise InvalidGroup("Select a role.")
    broker = None
    if pk := request.POST.get("broker", ""):
        broker = Broker.objects.filter(pk=row_number(pk) or 0).first()
        if broker is None:
            raise InvalidGroup("This broker no longer exists.")
    row = GroupRole(value=value, role=role, broker=broker)
    with audit.recorded(request.user, "role of a group set", broker=broker, what=str(row)):
        GroupRole.objects.update_or_create(value=value, broker=broker, defaults={"role": role})
    return f"“{value}” gives the role {role.label.lower()}."


def _delete(request: HttpRequest) -> str:
    """Raises InvalidGroup."""
    row = GroupRole.objects.filter(pk=row_number(request.POST["delete"]) or 0).first()
    if row is None:
        raise InvalidGroup("This group has no role any more.")
    with audit.recorded(request.user, "role of a group deleted", broker=row.broker, what=str(row)):
        row.delete()
    return f"“{row.value}” gives no role there any more."
