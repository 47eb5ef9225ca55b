"""Brokers, what is discovered in them, traced routes, findings."""

from __future__ import annotations

import time
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Router, Schema

from delayboard.api import schemas
from delayboard.api.guard import list_page, needs, open_broker
from delayboard.api.problem import Problem
from topology import access, snapshots
from topology.broker.errors import Unreachable
from topology.findings import report
from topology.forms.mute import MuteForm
from topology.forms.question import QuestionForm
from topology.management.commands import lint
from topology.management.input_file import choose_vhost
from topology.management.topology_command import plan_fields
from topology.models import Broker, Role
from topology.operations import adopt
from topology.operations.finding_rows import find_mutes, mute_finding, unmute_finding
from topology.operations.topology_rows import forwarders_at
from topology.routing.trace_route import as_json, ask
from topology.snapshots import Latest
from topology.views.brokers.discovered_topologies import recognize_snapshot
from topology.views.brokers.pages import LIST_AGE
from topology.views.findings import read_findings

router = Router()
NOT_YET = "Delayboard is still computing this from the newest snapshot. Try again in a second."


@router.get("/brokers", response=schemas.Page[schemas.Broker], **needs(Role.VIEWER))
def list_brokers(request: HttpRequest) -> Any:
    """The brokers that the token may see."""
    visible = access.visible_brokers(request.user)
    known = snapshots.fresh_all(visible, LIST_AGE)
    return list_page(map(_show, visible, known), None)


@router.get("/brokers/{slug:broker}", response=schemas.Broker, **needs(Role.VIEWER))
def get_broker(request: HttpRequest, broker: str) -> Any:
    """One broker with what Delayboard last read of it."""
    row = open_broker(request, broker)
    return _show(row, snapshots.fresh(row))


def _show(broker: Broker, known: Latest) -> dict[str, Any]:
    columns = ("slug", "name", "environment", "is_production", "is_read_only", "vhost")
    snapshot = known.snapshot
    depths = [one.messages for one in snapshot.numbers.values()] if snapshot else [None]
    return {name: getattr(broker, name) for name in columns} | {
        "version": snapshot.version if snapshot else None,
        "taken_at": snapshot.taken_at if snapshot else None,
        "error": known.error,
        "queues": len(snapshot.definitions.queues) if snapshot else None,
        "messages": None if None in depths else sum(depth or 0 for depth in depths),
        "alarms": list(snapshot.alarms) if snapshot else [],
    }


class Question(Schema):
    """A publish that nobody makes; `headers` is a JSON object, `rejecting` has names of queues."""

    exchange: str = ""
    routing_key: str = ""
    headers: str = ""
    expiration: str = ""
    rejecting: str = ""
    without_consumers: bool = False


@router.get("/brokers/{slug:broker}/route", response=schemas.Route, **needs(Role.VIEWER))
def trace_route(request: HttpRequest, broker: str, question: Query[Question]) -> Any:
    """Where a message would arrive, after which time and through which hops."""
    row = open_broker(request, broker)
    form = QuestionForm(question.model_dump())
    if not form.is_valid():
        refuse_form(form)
    known = _read(row)
    now_ms = time.time_ns() // 1_000_000
    assert known.snapshot is not None
    forwarders = forwarders_at(row)
    return as_json(ask(form.question(), known.snapshot, forwarders=forwarders, now_ms=now_ms))


@router.get(
    "/brokers/{slug:broker}/discovered",
    response=schemas.Page[schemas.Discovered],
    **needs(Role.VIEWER),
)
def list_discovered(request: HttpRequest, broker: str) -> Any:
    """The topologies that Delayboard recognizes in the broker."""
    row = open_broker(request, broker)
    snapshot = _read(row).snapshot
    assert snapshot is not None
    worked = recognize_snapshot(row, snapshot)
    if worked is None:
        raise Problem(503, NOT_YET)
    found = adopt.match_managed(row, worked.value.found, worked.snapshot)
    return list_page(
        (
            {
                "kind": one.found.use.kind,
                "name": one.found.use.name,
                "queues": list(one.found.queues),
                "waiting": one.found.waiting,
                "topology": one.managed.slug if one.managed else None,
            }
            for one in found
        ),
        None,
    )


@router.post("/brokers/{slug:broker}/adopt", response=schemas.Adopted, **needs(Role.OPERATOR))
def adopt_topology(
    request: HttpRequest, broker: str, body: schemas.Adoption, dry_run: bool = False
) -> Any:
    """Manage a discovered topology. Delayboard changes nothing in the broker."""
    row = open_broker(request, broker, Role.OPERATOR, changes=not dry_run)
    if dry_run:
        _, plan = adopt.preview(row, body.kind, body.name)
        return {"topology": None, "changes": plan_fields(plan)}
    topology, plan = adopt.adopt(request.user, row, body.kind, body.name)
    return {"topology": topology.slug, "changes": plan_fields(plan)}


@router.get("/brokers/{slug:broker}/findings", response=schemas.Findings, **needs(Role.VIEWER))
def list_findings(request: HttpRequest, broker: str, muted: bool = False) -> Any:
    """The findings of the broker that are not muted; with `muted` the muted ones."""
    row = open_broker(request, broker)
    _, worked = read_findings(row)
    if worked is None:
        raise Problem(503, _read(row).error or NOT_YET)
    mutes = find_mutes(row, timezone.now())
    return report.as_json({row.vhost: [one for one in worked.value if (one.key in mutes) == muted]})


@router.post("/brokers/{slug:broker}/lint", response=schemas.LintReport, **needs(Role.VIEWER))
def lint_broker(request: HttpRequest, broker: str, body: schemas.LintRequest) -> Any:
    """Check the broker as the command lint does, with a baseline. Changes nothing."""
    row = open_broker(request, broker)
    known = snapshots.fresh(row)
    if known.snapshot is None or known.error:
        raise Unreachable(known.error or NOT_YET)
    try:
        baseline = frozenset() if body.baseline is None else report.read_baseline(body.baseline)
    except report.NotABaseline as error:
        raise Problem(422, str(error), {"baseline": str(error)}) from error
    chosen = choose_vhost({row.vhost: known.snapshot}, body.vhost)
    options = body.model_dump() | {"source": row.slug}
    return lint.check(chosen, find_mutes(row, timezone.now()), baseline, options)


@router.post(
    "/brokers/{slug:broker}/findings/{slug:key}/mute", response=schemas.Done, **needs(Role.OPERATOR)
)
def mute(request: HttpRequest, broker: str, key: str, body: schemas.Mute) -> Any:
    """Do not count the finding until the end of a day."""
    row = open_broker(request, broker, Role.OPERATOR, changes=False)
    form = MuteForm(body.model_dump())
    if not form.is_valid():
        refuse_form(form)
    _, worked = read_findings(row)
    if worked is None:
        raise Problem(503, NOT_YET)
    one = next((each for each in worked.value if each.key == key), None)
    if one is None:
        raise Problem(409, "Finding not muted. It is already resolved.")
    until_at = form.cleaned_data["until"]
    mute_finding(request.user, row, one, reason=form.cleaned_data["reason"], until_at=until_at)
    return {"sentence": f"Finding muted until {until_at:%Y-%m-%d %H:%M} UTC."}


@router.post(
    "/brokers/{slug:broker}/findings/{slug:key}/unmute",
    response=schemas.Done,
    **needs(Role.OPERATOR),
)
def unmute(request: HttpRequest, broker: str, key: str) -> Any:
    """Count the finding again."""
    row = open_broker(request, broker, Role.OPERATOR, changes=False)
    is_done = unmute_finding(request.user, row, key)
    return {"sentence": "Finding unmuted." if is_done else "The finding is not muted."}


def _read(broker: Broker) -> Latest:
    """Raises Unreachable without any snapshot."""
    known = snapshots.fresh(broker)
    if known.snapshot is None:
        raise Unreachable(known.error or NOT_YET)
    return known


def refuse_form(form: Any) -> None:
    """Raises Problem with the sentences of an invalid form."""
    found = {name: " ".join(map(str, texts)) for name, texts in form.errors.items()}
    errors = {name: text for name, text in found.items() if name != "__all__"}
    raise Problem(422, " ".join(found.values()), errors)
