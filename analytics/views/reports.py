from __future__ import annotations

from datetime import UTC, date, datetime
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from analytics import nightly
from analytics.models import NightlyReport, Run, Slo
from analytics.models.results import Within
from analytics.models.run import RunState
from analytics.results import messages as messages_of
from analytics.results import period as ranges
from analytics.results.annotations import KINDS as ANNOTATION_KINDS
from analytics.results.contents import contents, shown_sections
from analytics.results.imported import find_notes
from analytics.results.period import CUSTOM, Period, find_usual, read_period
from analytics.results.read import (
    Report,
    Selection,
    choices,
    last_day,
    name_topologies,
    report,
)
from analytics.results.section import VIEWS
from analytics.retention.rules import DELIVERED
from topology import access, audit
from topology.content.export_format import csv_line
from topology.delays import format_ms
from topology.models import Broker, Role, Topology
from topology.patterns.table import KINDS
from topology.views.redirect_back import next_of

SHOWN_RUNS = 14
FILE_TYPES = {"html": "text/html; charset=utf-8", "pdf": "application/pdf"}


@require_safe
def reports(request: HttpRequest) -> HttpResponse:
    brokers = access.choose_brokers(request).shown
    period, problem = _period(request)
    if not problem and (query := _short_query(request.GET, period)) != request.GET.urlencode():
        return redirect(f"{request.path}?{query}")
    audited = access.visible_brokers(request.user, Role.ADMIN)
    found = report(period, brokers, _selection(request, brokers), audited)
    topology = Topology.objects.filter(slug=found.selection.topology, broker__in=brokers).first()
    runs = list(Run.objects.all()[:SHOWN_RUNS])
    of_range = [run for run in runs if period.first <= run.day <= period.last]
    only = brokers[0].slug if len(brokers) == 1 else ""
    parked_url = reverse("parked_messages", args=[only]) if only else ""
    named = brokers[0] if request.GET.get("broker") else None
    context = contents(found, parked_url, _day_url(request), _messages_url(request, found)) | {
        "ranges": ranges.LABELS,
        "views": VIEWS,
        "view": view if (view := request.GET.get("view", "")) in VIEWS else "lateness",
        "problem": problem,
        "import_notes": find_notes(period, brokers, found.selection.topology),
        "broker": named,
        "choices": choices(period, brokers, found.names),
        "patterns": {kind: pattern.EXPLANATION.title for kind, pattern in KINDS.items()},
        "topology": topology,
        "may_set_slo": topology is not None
        and access.may(request.user, topology.broker, Role.OPERATOR),
        "limits": Within.choices,
        "may_annotate": access.may(
            request.user, topology.broker if topology else named, Role.OPERATOR
        ),
        "annotation_kinds": ANNOTATION_KINDS,
        "runs": runs,
        "at_work": next((run for run in of_range if run.is_at_work), None),
        "is_computed": any(run.state == RunState.DONE for run in of_range),
        "is_future": period.first > datetime.now(UTC).date(),
        "run": of_range[0] if period.length == 1 and of_range else None,
        "stored": _stored(request, period),
        "may_see_runs": access.role_for(request.user, None) is not None,
        "may_import": access.may(request.user, None, Role.ADMIN),
        "may_deliver": access.may(request.user, None, Role.ADMIN),
        "may_run": access.visible_brokers(request.user, Role.OPERATOR).exists(),
    }
    return render(request, "analytics/reports.html", context)


@require_safe
def report_messages(request: HttpRequest) -> HttpResponse:
    """The recorded messages behind a row of a table."""
    brokers = access.choose_brokers(request).shown
    period, problem = _period(request)
    bucket = messages_of.read_bucket(request.GET)
    if problem or bucket is None:
        raise Http404(problem or "No table of the report has this row.")
    kept_from = DELIVERED.cutoff(datetime.now(UTC))
    selection = _selection(request, brokers)
    query = request.GET.copy()
    for name in ("kind", *messages_of.NUMBERS, "hour"):
        query.pop(name, None)
    context = {
        "period": period,
        "selection": selection,
        "topology": name_topologies([one.slug for one in brokers])[selection.topology],
        "title": messages_of.KINDS[bucket.kind],
        "conditions": messages_of.describe(bucket),
        "found": messages_of.find(period, brokers, selection, bucket, kept_from),
        "shown": messages_of.SHOWN,
        "most": messages_of.MOST_READ,
        "kept_days": DELIVERED.days,
        "report_query": query.urlencode(),
    }
    return render(request, "analytics/report_messages.html", context)


@require_safe
def table(request: HttpRequest, key: str) -> HttpResponse:
    """One table of the report with the same filters, as CSV."""
    brokers = access.choose_brokers(request).shown
    period, problem = _period(request)
    if problem:
        return HttpResponse(problem, status=400, content_type="text/plain; charset=utf-8")
    found = report(period, brokers, _selection(request, brokers))
    section = shown_sections(found).get(key)
    if section is None:
        raise Http404(f"The report has no table “{key}”.")
    kind = "generated-" if found.generated_days else ""
    name = f"{kind}{key.replace('_', '-')}-{period.first}-{period.last}.csv"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    lines = map(csv_line, section.csv_rows())
    return HttpResponse(lines, content_type="text/csv; charset=utf-8", headers=disposition)


@require_safe
@access.everywhere(Role.VIEWER)
def stored_report(request: HttpRequest, day: str, suffix: str) -> HttpResponse:
    """The nightly report of a day as a file; it has the figures of all brokers."""
    stored = get_object_or_404(NightlyReport, day=read_day(day))
    files = {"html": stored.html.encode(), "pdf": stored.pdf}
    if suffix not in files:
        raise Http404(f"A report is a file .html or .pdf, not .{suffix}.")
    content = files[suffix]
    if content is None:
        raise Http404(f"The report of {day} has no PDF. {stored.pdf_error}")
    name = f"delayboard-report-{day}.{suffix}"
    return HttpResponse(
        bytes(content),
        content_type=FILE_TYPES[suffix],
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@require_POST
def run(request: HttpRequest) -> HttpResponse:
    """Request a day from the worker."""
    if not access.visible_brokers(request.user, Role.OPERATOR).exists():
        raise PermissionDenied("This action needs the role operator on a broker.")
    text = request.POST.get("day", "")
    try:
        day = date.fromisoformat(text)
    except ValueError:
        messages.error(request, f"“{text}” is not a date. Enter a date such as 2026-11-20.")
        return redirect("analytics:reports")
    try:
        with audit.recorded(request.user, "nightly run requested", what=day.isoformat()):
            nightly.request_run(day)
        messages.success(request, f"The worker computes {day} next.")
    except nightly.DayRefused as refusal:
        messages.error(request, str(refusal))
    return redirect(f"{reverse('analytics:reports')}?from={day}&to={day}")


@require_POST
def slo(request: HttpRequest) -> HttpResponse:
    """Set the target of a topology, or delete it where no share is given."""
    slug = request.POST.get("topology", "")
    topology = get_object_or_404(
        Topology, slug=slug, broker__in=access.visible_brokers(request.user)
    )
    access.require(request.user, topology.broker, Role.OPERATOR)
    page = next_of(request, f"{reverse('analytics:reports')}?{urlencode({'topology': slug})}")
    share, within_ms = (request.POST.get(name, "") for name in ("percent", "within_ms"))
    if share.strip() and not _is_target(share, within_ms):
        messages.error(
            request, "The target is not valid. Enter 1 to 99.999 % and select a maximum lateness."
        )
        return redirect(page)
    what = f"{share} % within {format_ms(float(within_ms))}" if share.strip() else "no target"
    with audit.recorded(
        request.user, "SLO changed", broker=topology.broker, what=f"{slug}: {what}"
    ):
        if share.strip():
            values = {"percent": float(share), "within_ms": int(within_ms)}
            Slo.objects.update_or_create(topology=topology, defaults=values)
        else:
            Slo.objects.filter(topology=topology).delete()
    done = "saved" if share.strip() else "deleted"
    messages.success(request, f"The target of {topology.name} is {done}.")
    return redirect(page)


def _is_target(share: str, within_ms: str) -> bool:
    try:
        is_share = 1 <= float(share) <= 99.999
    except ValueError:
        return False
    return is_share and within_ms in {str(value) for value in Within.values}


def _period(request: HttpRequest) -> tuple[Period, str]:
    """The requested range, by default up to yesterday; what was wrong."""
    return read_period(request.GET, last_day())


def _short_query(values: QueryDict, period: Period) -> str:
    """The query without empty values; a range that the form names by two dates, but that is a usual
    one up to yesterday, by its name: the address shows the same range on the next day too.
    """
    short = values.copy()
    for name in [name for name, value in values.items() if not value]:
        del short[name]
    if values.get("range") == CUSTOM and (usual := find_usual(period, last_day())):
        for name in ("from", "to"):
            short.pop(name, None)
        short["range"] = usual
    return short.urlencode()


def _stored(request: HttpRequest, period: Period) -> NightlyReport | None:
    """The files of the last day, for who may see all that is in them."""
    if access.role_for(request.user, None) is None:
        return None
    return NightlyReport.objects.defer("html", "pdf").filter(day=period.last).first()


def _day_url(request: HttpRequest) -> str:
    """This page with its filters, to which a range is added."""
    values = request.GET.copy()
    for name in ("range", "from", "to"):
        values.pop(name, None)
    return f"?{values.urlencode()}&" if values else "?"


def _messages_url(request: HttpRequest, found: Report) -> str:
    """The page of recorded messages with range and filters; "" if none of them is kept."""
    kept_from = DELIVERED.cutoff(datetime.now(UTC))
    if kept_from and found.period.last < kept_from.date():
        return ""
    # No generated event is stored as a message.
    if found.generated_days:
        return ""
    query = request.GET.urlencode()
    page = reverse("analytics:report_messages")
    return f"{page}?{query}&" if query else f"{page}?"


def read_day(text: str) -> date:
    """Raises Http404."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise Http404(f"“{text}” is not a date.") from error


def _selection(request: HttpRequest, brokers: list[Broker]) -> Selection:
    """A topology may be given by its name: results have the slug."""
    names = ("topology", "pattern", "destination")
    asked = {name: request.GET.get(name, "").replace("\x00", "") for name in names}
    known = Topology.objects.filter(broker__in=brokers)
    if asked["topology"] and not known.filter(slug=asked["topology"]).exists():
        slug = known.filter(name=asked["topology"]).values_list("slug", flat=True).first()
        asked["topology"] = slug or asked["topology"]
    return Selection(**asked)
