"""Acknowledging a problem until it ends, or for a time: Now folds it, and no alert reports it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from delayboard.models import Acknowledgement
from delayboard.now.problems import Problem
from topology import audit
from topology.models import Broker

# Value in the form -> time for which a problem is snoozed.
SNOOZES = {
    "1": timedelta(hours=1),
    "8": timedelta(hours=8),
    "24": timedelta(days=1),
    "168": timedelta(days=7),
}


def acknowledge(
    user: audit.Actor, problem: Problem, broker: Broker | None, until_at: datetime | None
) -> None:
    """Acknowledge a problem until then, or until it ends; a second call replaces the first."""
    name = user.get_username() if user is not None else "delayboard"
    action = "problem snoozed" if until_at else "problem acknowledged"
    details = {"problem": problem.identity} | ({"until": until_at.isoformat()} if until_at else {})
    now = timezone.now()
    with (
        audit.recorded(user, action, broker=broker, what=problem.sentence, details=details),
        transaction.atomic(),
    ):
        values = {"broker": broker, "username": name, "created_at": now, "until_at": until_at}
        values["severity"] = problem.severity
        values["error_kind"] = problem.error_kind
        Acknowledgement.objects.update_or_create(identity=problem.identity, defaults=values)


def withdraw(user: audit.Actor, row: Acknowledgement) -> None:
    """Report the problem again from now on."""
    action = "acknowledgement withdrawn"
    with audit.recorded(user, action, broker=row.broker, what=row.identity):
        row.delete()


def split(
    found: Iterable[Problem], now: datetime
) -> tuple[list[Problem], list[tuple[Problem, Acknowledgement]]]:
    """The problems that need somebody, and those that somebody acknowledged."""
    rows = {row.identity: row for row in Acknowledgement.active(now)}
    open_ones, acknowledged = [], []
    for one in found:
        row = rows.get(one.identity)
        is_same = row is not None and row.error_kind == one.error_kind
        if row and is_same and row.severity in ("error", one.severity):
            acknowledged.append((one, row))
        else:
            open_ones.append(one)
    return open_ones, acknowledged
