"""Templates of messages: saved by one operator, used by all operators of the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import IntegrityError, transaction

from delayboard.models import PublishTemplate
from topology import audit
from topology.models import Broker

LONGEST_NAME = 100
LARGEST_BODY = 500_000


class TemplateError(ValueError):
    """Nothing was saved; the message says why."""


def save_template(
    user: AbstractBaseUser | AnonymousUser,
    broker: Broker | None,
    name: str,
    values: Mapping[str, Any],
) -> PublishTemplate:
    """Raises TemplateError."""
    if broker is None:
        raise TemplateError("Choose a topology or a broker first.")
    if not name or len(name) > LONGEST_NAME:
        raise TemplateError(f"Enter a name of at most {LONGEST_NAME} characters.")
    if len(str(values.get("body") or "")) > LARGEST_BODY:
        raise TemplateError("The body is larger than 500 kB. Shorten the body.")
    if "\\u0000" in json.dumps(values):
        # PostgreSQL has no text with it.
        raise TemplateError(
            "The template contains a NUL character. Remove it, or enter the body as base64."
        )
    try:
        with transaction.atomic():
            row = PublishTemplate.objects.create(
                broker=broker, name=name, values=dict(values), created_by_id=user.pk
            )
    except IntegrityError as error:
        raise TemplateError(f"A template “{name}” already exists. Choose another name.") from error
    audit.record(user, "template saved", broker=broker, what=name)
    return row


def delete_template(user: AbstractBaseUser | AnonymousUser, row: PublishTemplate) -> None:
    row.delete()
    audit.record(user, "template deleted", broker=row.broker, what=row.name)
