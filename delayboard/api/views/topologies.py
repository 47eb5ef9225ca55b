"""Topologies; their documents are those of the commands."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from delayboard.api import schemas
from delayboard.api.guard import answers, make_page, needs, open_broker, open_topology
from delayboard.api.problem import Problem
from topology import access, snapshots
from topology.broker.management.definitions_file import NotDefinitions
from topology.database.paging import read_page
from topology.definitions import Definitions
from topology.exports.resources import NotExportable
from topology.management.commands import apply, edit, plan, teardown, verify
from topology.management.topology_command import TopologyCommand
from topology.models import Drift, Role, State, Topology
from topology.operations import definitions_files
from topology.operations.definitions_files import FORMATS, import_definitions, make_import_record
from topology.patterns.pattern import ParamsError

router = Router()
PAGE = 100
UNCONFIRMED = schemas.NameConfirmation()


@router.get("/topologies", response=schemas.Page[schemas.Topology], **needs(Role.VIEWER))
def list_topologies(
    request: HttpRequest, broker: str = "", deleted: bool = False, after: str = ""
) -> Any:
    """The topologies, the newest first."""
    brokers = access.choose_brokers(request).shown
    rows = Topology.objects.filter(broker__in=brokers).select_related("broker", "drift")
    rows = rows if deleted else rows.exclude(state=State.DELETED)
    return make_page(read_page(rows, after, PAGE), _show)


@router.get("/topologies/{slug:topology}", response=schemas.Topology, **needs(Role.VIEWER))
def get_topology(request: HttpRequest, topology: str) -> Any:
    """One topology; `drift` is what the worker last saw."""
    return _show(open_topology(request, topology))


def _show(topology: Topology) -> dict[str, Any]:
    drift: Drift | None = getattr(topology, "drift", None)
    try:
        delays = topology.summary
    except ParamsError as error:
        delays = str(error)
    columns = ("slug", "name", "kind", "state", "params", "is_adopted", "applied_at")
    return {name: getattr(topology, name) for name in columns} | {
        "broker": topology.broker.slug,
        "delays": delays,
        "drift": drift
        and {
            "since_at": drift.since_at,
            "objects": drift.objects_count,
            "missing": drift.missing,
            "changed": drift.changed,
            "sentence": drift.sentence,
        },
    }


def _run(command: TopologyCommand, request: HttpRequest, topology: Topology, **given: Any) -> Any:
    """The command's document, made with the rights of the token."""
    result = command.act(topology, given | {"user": request.user})
    return command.make_document(topology, result)


@router.get("/topologies/{slug:topology}/plan", response=schemas.Plan, **needs(Role.VIEWER))
def plan_topology(request: HttpRequest, topology: str, without_tap: bool = False) -> Any:
    """What applying would create."""
    row = open_topology(request, topology)
    return _run(plan.Command(), request, row, without_tap=without_tap)


@router.post(
    "/topologies/{slug:topology}/verify", response=schemas.Verification, **needs(Role.VIEWER)
)
def verify_topology(request: HttpRequest, topology: str) -> Any:
    """Compare every argument, and trace the route of each delay. Changes nothing."""
    return _run(verify.Command(), request, open_topology(request, topology))


@router.post(
    "/topologies/{slug:topology}/apply", response=schemas.TopologyDocument, **needs(Role.OPERATOR)
)
def apply_topology(
    request: HttpRequest,
    topology: str,
    body: schemas.NameConfirmation = UNCONFIRMED,
    dry_run: bool = False,
    replace: bool = False,
) -> Any:
    """Create the missing objects in the broker; with `replace` the worker replaces its queues.

    To replace queues on production, send the topology's name.
    """
    row = open_topology(request, topology, Role.OPERATOR, changes=not dry_run)
    given = {"replace": replace, "dry_run": dry_run, "confirm": body.confirm}
    return _run(apply.Command(), request, row, **given)


@router.post(
    "/topologies/{slug:topology}/edit", response=schemas.TopologyDocument, **needs(Role.OPERATOR)
)
def edit_topology(
    request: HttpRequest, topology: str, body: schemas.Parameters, dry_run: bool = False
) -> Any:
    """Change parameters; the worker replaces queues whose arguments change."""
    row = open_topology(request, topology, Role.OPERATOR, changes=not dry_run)
    values = [f"{name}={value}" for name, value in body.values.items()]
    return _run(edit.Command(), request, row, values=values, dry_run=dry_run, confirm=body.confirm)


@router.get("/topologies/{slug:topology}/export", **answers(Role.VIEWER, "text/plain"))
def export_topology(
    request: HttpRequest, topology: str, format: str = "definitions"
) -> HttpResponse:
    """The topology for another tool: definitions, terraform, kubernetes, permissions or
    permissions-declaring."""
    row = open_topology(request, topology)
    if format not in FORMATS:
        raise Problem(422, f"Send one of {', '.join(FORMATS)}.", {"format": "Unknown."})
    known = snapshots.fresh(row.broker)
    found = known.snapshot.definitions if known.snapshot else Definitions()
    try:
        text = definitions_files.export_topology(row, format, found)
    except NotExportable as error:
        raise Problem(409, str(error)) from error
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


@router.post(
    "/brokers/{slug:broker}/topologies/import",
    response=schemas.ImportedTopologies,
    **needs(Role.OPERATOR),
)
def import_topologies(request: HttpRequest, broker: str, body: schemas.DefinitionsFile) -> Any:
    """Plan the topologies of exported definitions. The broker is not changed."""
    row = open_broker(request, broker, Role.OPERATOR)
    try:
        imported = import_definitions(request.user, row, body.definitions, body.vhost)
    except NotDefinitions as error:
        raise Problem(422, f"Nothing was imported. {error}") from error
    return make_import_record(imported)


@router.post(
    "/topologies/{slug:topology}/teardown",
    response=schemas.TopologyDocument,
    **needs(Role.OPERATOR),
)
def teardown_topology(
    request: HttpRequest, topology: str, body: schemas.NameConfirmation, dry_run: bool = False
) -> Any:
    """Delete what Delayboard created. With messages in it, or on production, send its name."""
    row = open_topology(request, topology, Role.OPERATOR, changes=not dry_run)
    return _run(teardown.Command(), request, row, dry_run=dry_run, confirm=body.confirm)
