"""Figures, nightly runs and their ledger."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Router, Status

from analytics import nightly
from analytics.models import Run
from analytics.results.nightly_report import as_json
from analytics.results.period import CUSTOM, Period
from analytics.results.read import Selection, report
from delayboard.api import schemas
from delayboard.api.guard import make_page, needs
from topology import access, audit
from topology.database.paging import read_slice
from topology.models import Role

router = Router()
PAGE = 100
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
    brokers = access.choose_brokers(request).shown
    asked = (topology, pattern, destination)
    selection = Selection(*(text.replace("\x00", "") for text in asked))
    when = _read_day(day)
    return as_json(report(Period(CUSTOM, when, when), brokers, selection))


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
    if not access.visible_brokers(request.user, Role.OPERATOR).exists():
        raise PermissionDenied("This action needs the role operator on a broker.")
    day = _read_day(body.day)
    user: Any = request.user
    with audit.recorded(user, "nightly run requested", what=day.isoformat()):
        run = nightly.request_run(day)
    response["Location"] = f"/api/v1/runs/{day}"
    return Status(202, _show(run))


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
