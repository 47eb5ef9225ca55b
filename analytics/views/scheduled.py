"""What waits in the delays: due when, for whom, and what should have left by now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from analytics.models import ScheduledMessage
from analytics.scheduled.pages import export, lines
from analytics.scheduled.pages.lines import PAGE, ScheduledList, load_list
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import Filter, parse
from analytics.scheduled.summaries.counts import describe
from analytics.views.due_calendar import due_calendar, near_overload
from analytics.views.streaming import download
from topology import access, audit, redaction, snapshots
from topology.clients.forms import read_trace
from topology.content.export_format import FORMS
from topology.database.paging import newest_number, row_number
from topology.delays import MOMENT_HELP
from topology.models import Broker, Role
from topology.redaction import Redaction
from topology.routing.trace_route import Question
from topology.views.brokers.trace_route import trace
from topology.views.diagram import draw_path
from topology.views.sorting import read_sort

# Ends of the ranges, in the order of counts.SPANS.
DUE_UNTIL = {"hour": "+1h", "day": "+1d", "week": "+7d"}
VIEWS = {"list": "List", "calendar": "Calendar", "chart": "Chart"}


@require_safe
def scheduled(request: HttpRequest) -> HttpResponseBase:
    """The list; with `as` all of it as a file."""
    choice = access.choose_brokers(request)
    brokers = choice.shown
    now = datetime.now(UTC)
    hidden = redaction.rules_by_broker(request.user, brokers)
    filters = listing.allowed(parse(request.GET.dict(), now), brokers, hidden)
    form = request.GET.get("as", "")
    if form:
        return export_list(request, brokers, filters, form, now, hidden)
    view = request.GET.get("view", "")
    view = view if view in VIEWS else "list"
    is_list = view == "list"
    # Another view has no pages, and no rows.
    after = row_number(request.GET.get("after", "")) if is_list else None
    sort = read_sort(request, ("due",), "due")
    newest = newest_number(ScheduledMessage.objects.all())
    shown = load_list(
        brokers,
        filters,
        now,
        hidden=hidden,
        after=after,
        is_reversed=sort == "-due",
        page=PAGE if is_list else 0,
    )
    operated = list(access.visible_brokers(request.user, Role.OPERATOR))
    context = {
        "broker": choice.chosen,
        "shows_brokers": choice.only is None,
        "listing": shown,
        "sort": sort,
        "filters": filters,
        "after": after,
        "moment_help": MOMENT_HELP,
        "strip": _strip(shown, filters),
        "view": view,
        "views": VIEWS,
        "calendar": None if is_list else due_calendar(brokers, shown.topologies, filters, now),
        "overload": near_overload(brokers, shown.topologies, filters, now) if is_list else None,
        "operated": operated,
        "may_change": bool(operated),
        "newest": newest,
        "live": ",".join(str(broker.pk) for broker in brokers),
    }
    return render(request, "analytics/scheduled.html", context)


@require_safe
def scheduled_message(request: HttpRequest, pk: int) -> HttpResponse:
    """One message; with `body=1` its body, which is written down."""
    rows = ScheduledMessage.objects.select_related("broker", "topology")
    row = get_object_or_404(rows, pk=pk)
    access.require(request.user, row.broker, Role.VIEWER)
    hidden = redaction.rules_for(request.user, row.broker)
    now = datetime.now(UTC)
    shown = lines.make_page(row, now, hidden)
    trace = read_trace(shown.line.headers)
    context: dict[str, Any] = {"broker": row.broker, "row": row, "page": shown, "trace": trace}
    is_waiting = row.left_at is None and row.entered_at is not None
    is_due = row.due_at is None or row.due_at <= now
    context["may_copy"] = access.may(request.user, row.broker, Role.OPERATOR)
    context["may_change"] = is_waiting and not is_due and context["may_copy"]
    # The page is fetched again when the message changes, without its body.
    is_fetched = "X-Refresh" in request.headers
    if request.GET.get("body") == "1" and shown.has_body and not is_fetched:
        what = f"{row.topology or row.broker}: {shown.line.name}"
        with audit.recorded(request.user, "body viewed", broker=row.broker, what=what):
            context["body"] = lines.body(row, hidden)
            context["hides_body"] = context["body"] is None
    return render(request, "analytics/scheduled_message.html", context | _route(row, shown, now))


def _route(row: ScheduledMessage, shown: lines.MessagePage, now: datetime) -> dict[str, Any]:
    """The route of a message in the broker as it is now, drawn with the queue in which it should
    be.

    Not for readers from whom a header is hidden.
    """
    known = snapshots.latest(row.broker_id)
    if known is None or known.snapshot is None or row.entered_at is None:
        return {}
    if shown.line.headers != json.loads(row.headers_json):
        # Bindings may match what is hidden: the route would be another, or tell the reader of it.
        return {"hides_route": True}
    question = Question(row.exchange, row.routing_key, shown.line.headers)
    answer = trace(question, row.broker, known.snapshot)
    if not len(answer.path):
        return {}
    passed = min(now, row.due_at or now) - row.entered_at
    begun = [one for one in answer.walk.hops if one.wait is not None and one.after <= passed]
    last = max(begun, key=lambda one: one.after, default=None)
    place = last.queue if last and row.left_at is None else ""
    drawn = draw_path(answer, known.snapshot, row.broker, place=place)
    return {"diagram": drawn, "latest": known}


def export_list(
    request: HttpRequest,
    brokers: list[Broker],
    filters: Filter,
    form: str,
    now: datetime,
    hidden: Mapping[int, Redaction],
) -> HttpResponseBase:
    """Raises Http404 for a form that there is none of."""
    if form not in FORMS:
        raise Http404
    if filters.problems:
        sentences = "\n".join(filters.problems.values())
        return HttpResponse(sentences, status=400, content_type="text/plain; charset=utf-8")
    rows = listing.filter_waiting(brokers, filters, now)
    lines = export.lines(rows, filters.query, hidden)
    return download(request, export.write(form, lines), form, "scheduled")


@dataclass(frozen=True)
class Figure:
    """A number over the list and where its messages are."""

    label: str
    number: int
    url: str
    is_current: bool = False
    is_late: bool = False
    is_stuck: bool = False
    is_doubtful: bool = False

    @property
    def text(self) -> str:
        return describe(self.number)

    @property
    def is_bad(self) -> bool:
        return self.number > 0 and (self.is_late or self.is_stuck)


def _strip(listing: ScheduledList, filters: Filter) -> list[Figure]:
    """What waits, what is overdue, what falls due soon; empty without numbers."""
    total = listing.summary
    if total is None:
        return []

    def link(**changes: str) -> str:
        return filters.url(**{"from_": "", "until": "", "overdue": "", "stuck": ""} | changes)

    figures = [
        Figure(
            "All", total.waiting, link(), not filters.is_narrowed, is_doubtful=bool(listing.doubts)
        ),
        Figure("Overdue", total.overdue, link(overdue="1"), filters.is_overdue, is_late=True),
    ]
    if total.stuck or filters.is_stuck:
        stuck = Figure("Stuck", total.stuck, link(stuck="1"), filters.is_stuck, is_stuck=True)
        figures.insert(1, stuck)
    for (name, until), number in zip(DUE_UNTIL.items(), total.due_counts, strict=True):
        is_current = (filters.from_text, filters.until_text) == ("now", until)
        url = link(from_="now", until=until)
        figures.append(Figure(f"Next {name}", number, url, is_current))
    return figures
