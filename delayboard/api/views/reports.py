"""Figures, nightly runs and their ledger, imports of logs, annotations."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Path, Router, Status

from analytics import nightly
from analytics.events import clean
from analytics.importing import requested
from analytics.importing.sources import Refused
from analytics.models import Annotation, LogImport, Run
from analytics.models.imports import find_mapping
from analytics.results import annotations as annotation_rows
from analytics.results.annotations import make_mark, make_record, read_marks
from analytics.results.nightly_report import as_html, as_json, as_text
from analytics.results.period import CUSTOM, Period
from analytics.results.read import Report, Selection, report
from delayboard.api import schemas
from delayboard.api.guard import (
    answers,
    make_page,
    needs,
    open_broker,
    open_topology,
    require_format,
    require_operator,
)
from topology import access, audit, work
from topology.database.paging import read_slice
from topology.delays import read_moment
from topology.models import Broker, Role

router = Router()
PAGE = 100
EVERYTHING = Selection()
EVERYWHERE = "every broker"
ADMIN = needs(Role.ADMIN, EVERYWHERE)
# Counts of an import, as they are stored.
COUNTS = ("read", "events", "added", "known", "ignored", "malformed")


@router.get("/reports/{day}", response=schemas.Figures, **needs(Role.VIEWER))
def get_report(
    request: HttpRequest,
    day: str,
    broker: str = "",
    topology: str = "",
    pattern: str = "",
    destination: str = "",
) -> Any:
    """The figures and tables of one UTC day for the brokers that the token may see."""
    asked = (topology, pattern, destination)
    selection = Selection(*(text.replace("\x00", "") for text in asked))
    return as_json(_read_report(request, day, selection))


@router.get("/reports/{day}/document", **answers(Role.VIEWER, "text/plain", "text/html"))
def get_report_document(
    request: HttpRequest, day: str, broker: str = "", format: str = "text"
) -> HttpResponse:
    """The same as a document: text, or html as it is sent by mail."""
    require_format(format, ("text", "html"))
    found = _read_report(request, day)
    if format == "html":
        return HttpResponse(as_html(found))
    return HttpResponse(as_text(found), content_type="text/plain; charset=utf-8")


def _read_report(request: HttpRequest, day: str, selection: Selection = EVERYTHING) -> Report:
    when = _read_day(day)
    nightly.refuse_day(when)
    audited = access.visible_brokers(request.user, Role.ADMIN)
    shown = access.choose_brokers(request).shown
    return report(Period(CUSTOM, when, when), shown, selection, audited)


@router.get("/runs", response=schemas.Page[schemas.Run], **needs(Role.VIEWER, EVERYWHERE))
def list_runs(request: HttpRequest, after: str = "") -> Any:
    """The nightly runs, the newest day first, with what each left out."""
    access.require(request.user, None, Role.VIEWER)
    return make_page(read_slice(Run.objects.defer("output"), after, PAGE), _show)


@router.get("/runs/{day}", response=schemas.Run, **needs(Role.VIEWER, EVERYWHERE))
def get_run(request: HttpRequest, day: str) -> Any:
    """The last run of a day."""
    access.require(request.user, None, Role.VIEWER)
    return _show(get_object_or_404(Run, day=_read_day(day)))


@router.post("/runs", response={202: schemas.Run}, **needs(Role.OPERATOR, "any broker"))
def request_run(request: HttpRequest, response: HttpResponse, body: schemas.RunRequest) -> Any:
    """Let the worker compute a day."""
    require_operator(request)
    day = _read_day(body.day)
    user: Any = request.user
    with audit.recorded(user, "nightly run requested", what=day.isoformat()):
        run = nightly.request_run(day)
    response["Location"] = f"/api/v1/runs/{day}"
    return Status(202, _show(run))


@router.get("/log-imports", response=schemas.Page[schemas.LogImport], **ADMIN)
def list_log_imports(request: HttpRequest, after: str = "") -> Any:
    """Files that were uploaded or imported into the event log, the newest first."""
    access.require(request.user, None, Role.ADMIN)
    rows = LogImport.objects.select_related("broker", "work").defer("mapping_text")
    return make_page(read_slice(rows, after, PAGE), _show_import)


@router.post("/log-imports", response={202: schemas.LogImport}, **ADMIN)
def import_log(
    request: HttpRequest,
    response: HttpResponse,
    name: str = "import.log",
    mapping: str = "",
    broker: str = "",
    topology: str = "",
    dry_run: bool = False,
) -> Any:
    """Import the log that is the body, by the mapping of this name; without one, by the mapping
    that fits its begin, or as events. A dry run only counts, and keeps the file for its start.
    """
    access.require(request.user, None, Role.ADMIN, request=request)
    of = get_object_or_404(Broker, slug=broker) if broker else None
    chosen = find_mapping(mapping) if mapping else None
    if not request.body:
        raise Refused("The file is empty. Send it as the body.")
    with audit.recorded(request.user, "import file uploaded", what=clean(name)):
        row = requested.store_upload(
            *(request.user, clean(name), [request.body]),
            mapping=chosen,
            broker=of,
            topology=clean(topology),
        )
    try:
        return _begin_import(request, response, row, is_dry=dry_run)
    except Refused:
        requested.delete_upload(row)
        raise


@router.get("/log-imports/{log_import}", response=schemas.LogImport, **ADMIN)
def get_log_import(request: HttpRequest, log_import: Path[schemas.RowId]) -> Any:
    """The progress of an import or a dry run, and what it counted."""
    return _show_import(_open_import(request, log_import))


@router.post("/log-imports/{log_import}/start", response={202: schemas.LogImport}, **ADMIN)
def start_log_import(
    request: HttpRequest, response: HttpResponse, log_import: Path[schemas.RowId]
) -> Any:
    """Import the file of a dry run."""
    return _begin_import(request, response, _open_import(request, log_import), is_dry=False)


@router.post("/log-imports/{log_import}/stop", response=schemas.LogImport, **ADMIN)
def stop_log_import(request: HttpRequest, log_import: Path[schemas.RowId]) -> Any:
    """Stop it; events that are in the log stay."""
    row = _open_import(request, log_import)
    if row.work:
        work.cancel(row.work)
        audit.record(request.user, "import stop requested", what=row.file_name)
        row.work.refresh_from_db()
    return _show_import(row)


@router.get("/annotations", response=schemas.Page[schemas.Annotation], **needs(Role.VIEWER))
def list_annotations(
    request: HttpRequest,
    broker: str = "",
    topology: str = "",
    since: str = "28 days ago",
    until: str = "",
    after: str = "",
) -> Any:
    """Annotations, the earliest first, with our own changes, replays and outages."""
    now = datetime.now(UTC)
    begin = read_moment(since, now)
    end = read_moment(until, now) if until else now + timedelta(days=28)
    audited = access.visible_brokers(request.user, Role.ADMIN)
    found = read_marks(begin, end, access.choose_brokers(request).shown, topology, audited)
    return make_page(read_slice(found, after, PAGE), make_record)


@router.post("/annotations", response=schemas.Annotation, **needs(Role.OPERATOR))
def add_annotation(request: HttpRequest, body: schemas.NewAnnotation) -> Any:
    """Add one, such as a deploy. One of all brokers needs the role on all of them."""
    topology = (
        open_topology(request, body.topology, Role.OPERATOR, changes=False)
        if body.topology
        else None
    )
    broker = (
        open_broker(request, body.broker, Role.OPERATOR, changes=False) if body.broker else None
    )
    if topology is None and broker is None:
        access.require(request.user, None, Role.OPERATOR)
    values = body.model_dump(exclude={"broker", "topology"})
    row = annotation_rows.add_annotation(request.user, broker=broker, topology=topology, **values)
    return make_record(make_mark(row))


@router.post("/annotations/{annotation}/delete", response=schemas.Done, **needs(Role.OPERATOR))
def delete_annotation(request: HttpRequest, annotation: schemas.RowId) -> Any:
    """Delete one that somebody added."""
    row = get_object_or_404(Annotation.objects.select_related("broker"), pk=annotation)
    access.require(request.user, row.broker, Role.OPERATOR)
    annotation_rows.delete_annotation(request.user, row)
    return {"sentence": f"The annotation “{row.text}” is deleted."}


def _read_day(text: str) -> date:
    """Raises DayRefused."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise nightly.DayRefused(
            f"“{text}” is not a date. Send a date such as 2026-11-20."
        ) from error


def _show(run: Run) -> dict[str, Any]:
    names = schemas.Run.model_fields
    return {name: getattr(run, name) for name in names}


def _open_import(request: HttpRequest, pk: int) -> LogImport:
    access.require(request.user, None, Role.ADMIN, request=request)
    return get_object_or_404(LogImport.objects.select_related("broker", "work"), pk=pk)


def _begin_import(
    request: HttpRequest, response: HttpResponse, row: LogImport, *, is_dry: bool
) -> Any:
    requested.request_import(request.user, row, is_dry=is_dry)
    response["Location"] = f"/api/v1/log-imports/{row.pk}"
    return Status(202, _show_import(row))


def _show_import(row: LogImport) -> dict[str, Any]:
    own = row.work
    return {
        "id": row.pk,
        "file": row.file_name,
        "mapping": row.mapping_name,
        "broker": row.broker.slug if row.broker else None,
        "topology": row.topology,
        "is_dry_run": row.is_dry,
        "is_imported": row.is_imported,
        "state": own.state if own else None,
        "error": own.error if own else "",
        "counts": {name: row.result[name] for name in COUNTS if name in row.result},
        "topologies": row.result.get("topologies", []),
        "days": row.result.get("days", []),
        "unknown": row.notes,
        "problems": [{"line": one["number"], "sentence": one["why"]} for one in row.problems],
    }
