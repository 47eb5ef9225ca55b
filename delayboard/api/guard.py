"""What the operations share: who may, which row, which page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.shortcuts import get_object_or_404

from delayboard.api.problem import Problem
from topology import access
from topology.database.paging import Page
from topology.models import Broker, Role, Topology

Item = TypeVar("Item")
CONFIRM = "Send its name as “confirm”."


def needs(role: Role, where: str = "the broker") -> dict[str, Any]:
    """The requirement for the document; the operation's guard decides."""
    return {"openapi_extra": {"x-role": role.name.lower(), "x-role-on": where}}


def answers(role: Role, *media_types: str) -> dict[str, Any]:
    """As `needs`, for an operation that answers a text."""
    content = {media_type: {"schema": {"type": "string"}} for media_type in media_types}
    responses = {200: {"description": "OK", "content": content}}
    return {"openapi_extra": needs(role)["openapi_extra"] | {"responses": responses}}


def open_broker(
    request: HttpRequest, slug: str, role: Role = Role.VIEWER, *, changes: bool = True
) -> Broker:
    """The broker, guarded as by `access.with_broker`. Raises Http404 and PermissionDenied."""
    broker = get_object_or_404(Broker, slug=slug)
    access.require(request.user, broker, role, request=request if changes else None)
    return broker


def open_topology(
    request: HttpRequest, slug: str, role: Role = Role.VIEWER, *, changes: bool = True
) -> Topology:
    """Raises Http404 and PermissionDenied."""
    topology = get_object_or_404(Topology.objects.select_related("broker"), slug=slug)
    access.require(request.user, topology.broker, role, request=request if changes else None)
    return topology


def require_format(format: str, known: Iterable[str]) -> None:
    """Raises Problem for a form that an operation does not write."""
    if format not in known:
        raise Problem(422, f"Send one of {', '.join(known)}.", {"format": "Unknown."})


def require_operator(request: HttpRequest) -> None:
    """Raises PermissionDenied for who operates no broker."""
    if not access.visible_brokers(request.user, Role.OPERATOR).exists():
        raise PermissionDenied("This action needs the role operator on a broker.")


def require_name(broker: Broker, confirm: str, *, is_needed: bool = False) -> None:
    """Raises Problem where the broker's name has to be sent and was not."""
    if refusal := access.production_refusal(broker, confirm, CONFIRM, is_needed=is_needed):
        raise Problem(409, refusal)


def make_page(page: Page[Item], show: Callable[[Item], Any]) -> dict[str, Any]:
    return list_page(map(show, page.rows), page.edge)


def list_page(items: Iterable[Any], edge: int | None) -> dict[str, Any]:
    return {"items": list(items), "next": None if edge is None else str(edge)}
