"""Figures, nightly runs and their ledger, annotations."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Router, Status

from analytics import nightly
from analytics.models import Annotation, Run
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
from topology import access, audit
from topology.database.paging import read_slice
from topology.delays import read_moment
from topology.models import Role

router = Router()
PAGE = 100
EVERYTHING = Selection()
EVERYWHERE = "every broker"


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
