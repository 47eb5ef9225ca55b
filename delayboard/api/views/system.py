"""Background tasks, alerts, the audit log."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router

from delayboard.api import schemas
from delayboard.api.guard import list_page, make_page, needs, require_operator
from delayboard.api.problem import Problem as Refused
from delayboard.models import AlertChannel, AlertMessage, ApiToken, BackgroundTask
from delayboard.models.acknowledgement import Acknowledgement
from delayboard.now.acknowledge import SNOOZES, acknowledge, withdraw
from delayboard.now.board import BROKER_AGE, overview
from delayboard.now.problems import Problem
from delayboard.now.system import background_tasks_of
from topology import access
from topology.database.paging import read_page, read_slice
from topology.models import AuditEntry, Role
from topology.views.audit import readable_entries

router = Router()
PAGE = 100


@router.get("/problems", response=schemas.Page[schemas.OpenProblem], **needs(Role.VIEWER))
def list_problems(request: HttpRequest, broker: str = "") -> Any:
    """The problems of Now, the worst first, with those that somebody acknowledged."""
    brokers = access.choose_brokers(request).shown
    found = overview(brokers, timezone.now(), BROKER_AGE)
    slugs = {one.pk: one.slug for one in brokers}

    def show(problem: Problem, row: Acknowledgement | None) -> dict[str, Any]:
        return {
            "severity": problem.severity,
            "kind": problem.kind,
            "sentence": problem.sentence,
            "key": problem.identity,
            "broker": slugs.get(problem.broker or 0),
            "since_at": problem.since_at,
            "acknowledged_by": row.username if row else None,
            "acknowledged_until": row.until_at if row else None,
        }

    rows: list[tuple[Problem, Acknowledgement | None]] = [
        (one, None) for one in found.open_problems
    ]
    return list_page((show(*pair) for pair in (*rows, *found.acknowledged)), None)


@router.post(
    "/problems/acknowledge",
    response=schemas.Done,
    **needs(Role.OPERATOR, "the broker of the problem"),
)
def acknowledge_problem(request: HttpRequest, body: schemas.ProblemAcknowledgement) -> Any:
    """Acknowledge a problem until it ends, or for hours; with `withdraw` report it again."""
    require_operator(request)
    visible = {broker.pk: broker for broker in access.visible_brokers(request.user)}
    found = overview(list(visible.values()), timezone.now(), BROKER_AGE, named=None)
    problems = {one.identity: one for one in found.open_problems}
    rows = {one.identity: row for one, row in found.acknowledged}
    problems |= {one.identity: one for one, _ in found.acknowledged}
    if (problem := problems.get(body.key)) is None:
        raise Refused(404, "The problem is already resolved, or the token has no access.")
    broker = visible[problem.broker] if problem.broker is not None else None
    access.require(request.user, broker, Role.OPERATOR)
    if body.withdraw:
        if (row := rows.get(body.key)) is None:
            raise Refused(409, "Nobody acknowledged the problem.")
        withdraw(request.user, row)
        return {"sentence": "The problem is reported again."}
    until_at = timezone.now() + SNOOZES[body.hours] if body.hours else None
    acknowledge(request.user, problem, broker, until_at)
    until = f"until {until_at:%Y-%m-%d %H:%M} UTC" if until_at else "until the problem ends"
    return {"sentence": f"Acknowledged {until}. No alert reports it in this time."}


@router.get("/tasks", response=schemas.Page[schemas.Task], **needs(Role.VIEWER))
def list_tasks(request: HttpRequest) -> Any:
    """The worker's tasks with their last heartbeats."""
    return list_page(
        map(_show_task, background_tasks_of(list(access.visible_brokers(request.user)))), None
    )


def _show_task(task: BackgroundTask) -> dict[str, Any]:
    return {
        "key": task.key,
        "name": task.name,
        "host": task.host,
        "broker": task.broker.slug if task.broker else None,
        "beat_at": task.beat_at,
        "is_late": task.is_late,
        "error": task.last_error,
    }


@router.get("/token", response=schemas.Token, **needs(Role.VIEWER, "any broker"))
def get_token(request: HttpRequest) -> Any:
    """The token of this request."""
    token: ApiToken = request.api_token  # type: ignore[attr-defined]
    slugs = None
    if token.broker_ids is not None:
        visible = access.visible_brokers(request.user).filter(pk__in=token.broker_ids)
        slugs = list(visible.values_list("slug", flat=True))
    role = Role(token.role).name.lower()
    return {"role": role, "brokers": slugs, "name": token.name, "expires_at": token.expires_at}


@router.get("/alerts", response=schemas.Page[schemas.Alert], **needs(Role.ADMIN, "every broker"))
def list_alerts(request: HttpRequest, after: str = "") -> Any:
    """The sent alerts and those that were not sent, the newest first."""
    access.require(request.user, None, Role.ADMIN)

    def show(one: AlertMessage) -> dict[str, Any]:
        columns = ("title", "state", "created_at", "ended_at", "error")
        return {name: getattr(one, name) for name in columns} | {"receiver": one.receiver.name}

    rows = AlertMessage.objects.select_related("receiver")
    rows = rows.exclude(receiver__channel=AlertChannel.SIGNED)
    return make_page(read_slice(rows, after, PAGE), show)


@router.get("/audit", response=schemas.Page[schemas.AuditEntry], **needs(Role.ADMIN, "any broker"))
def list_audit(request: HttpRequest, q: str = "", after: str = "") -> Any:
    """The audit log, the newest entry first: of all brokers, or of those that the token is admin
    of.
    """
    if not access.may_audit(request.user):
        raise PermissionDenied("This page needs the role admin on a broker.")
    entries = readable_entries(request.user)
    if text := q.replace("\x00", "").strip():
        entries = entries.filter(
            Q(action__icontains=text) | Q(what__icontains=text) | Q(username__icontains=text)
        )

    def show(entry: AuditEntry) -> dict[str, Any]:
        columns = ("at", "username", "action", "what", "outcome", "details")
        return {name: getattr(entry, name) for name in columns} | {"broker": entry.broker_name}

    return make_page(read_page(entries, after, PAGE), show)
