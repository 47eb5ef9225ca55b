"""The rule of a group: where its messages go by default."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from delayboard.dead_letters.replay.batch.options import OptionError, find_target_problems
from delayboard.models import MessageGroup, RedirectRule
from topology import audit


def redirect_group(user: Any, group: MessageGroup, exchange: str, key: str) -> RedirectRule:
    """From now on its messages go there by default, also those of drafts that are changed.

    Raises OptionError.
    """
    if problems := find_target_problems(exchange, key):
        raise OptionError(problems)
    with transaction.atomic():
        rule, _ = RedirectRule.objects.update_or_create(
            group=group,
            defaults={
                "exchange": exchange,
                "routing_key": key,
                "set_by": user,
                "set_at": timezone.now(),
            },
        )
        audit.record(
            user,
            "group redirected",
            broker=group.broker,
            what=str(group),
            details={"group": group.pk, "exchange": exchange, "routing_key": key},
        )
    return rule


def clear_redirect(user: Any, group: MessageGroup) -> bool:
    """Its messages go where they came from again; whether there was a rule."""
    with transaction.atomic():
        deleted, _ = RedirectRule.objects.filter(group=group).delete()
        if deleted:
            audit.record(
                user,
                "group no longer redirected",
                broker=group.broker,
                what=str(group),
                details={"group": group.pk},
            )
    return bool(deleted)
