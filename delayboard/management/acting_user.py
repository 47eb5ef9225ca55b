"""The account with whose permissions a command acts."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError
from structlog.contextvars import bind_contextvars

from topology import access
from topology.management.exit_codes import BadInput
from topology.models import Broker, Role


def find_user(name: str | None, broker: Broker) -> Any:
    """None is Delayboard itself, as for whoever has a shell here; else somebody who may."""
    bind_contextvars(broker_id=broker.pk)
    if name is None:
        return None
    user = get_user_model().objects.filter(username=name).first()
    if user is None:
        raise BadInput(f"There is no account “{name}”.")
    if not access.may(user, broker, Role.OPERATOR):
        raise CommandError(f"“{name}” does not have the role operator on {broker.name}.")
    bind_contextvars(actor_id=user.pk)
    return user
