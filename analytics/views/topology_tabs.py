"""The tabs of a topology's page that show recorded messages: the list and the history."""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from analytics import topology_history as history
from analytics.charts import figures as charts
from analytics.charts import svg
from analytics.models import Firehose, ScheduledMessage
from analytics.observation import untapped
from analytics.retention.rules import MINUTES
from analytics.scheduled.pages.lines import load_list
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import parse
from topology import access, redaction
from topology.database.paging import newest_number, row_number
from topology.models import Role, Topology
from topology.views.topologies.tabs import head_context, with_topology


@require_safe
@with_topology(Role.VIEWER)
def topology_messages(request: HttpRequest, topology: Topology) -> HttpResponse:
    now, broker = datetime.now(UTC), topology.broker
    hidden = {broker.pk: redaction.rules_for(request.user, broker)}
    filters = listing.allowed(parse({"topology": topology.slug}, now), [broker], hidden)
    after = row_number(request.GET.get("after", ""))
    operated = list(access.visible_brokers(request.user, Role.OPERATOR))
    context = {
        **head_context(request, topology),
        "tab": "messages",
        "filters": filters,
        "after": after,
        # The number is read before the list: what comes meanwhile counts as new.
        "newest": newest_number(ScheduledMessage.objects.all()),
        "listing": load_list([broker], filters, now, hidden=hidden, after=after),
        "operated": operated,
        "may_change": broker in operated,
    }
    return render(request, "analytics/topology_messages.html", context)


@require_safe
@with_topology(Role.VIEWER)
def topology_history(request: HttpRequest, topology: Topology) -> HttpResponse:
    now = datetime.now(UTC)
    width = history.read_width(request.GET.get("by", ""), topology, now)
    firehose = Firehose.objects.filter(broker=topology.broker).first()
    untapped_sides = frozenset[str](untapped(topology))
    not_observed = frozenset[str]() if firehose else untapped_sides
    begun = dict.fromkeys(untapped_sides, firehose.switched_on_at) if firehose else {}
    kept_from = MINUTES.cutoff(now)
    found = history.read_history(topology, width, now, not_observed, begun, kept_from)
    figures = [
        ("throughput", "Messages in and out", charts.throughput(found.spans)),
        ("depth", "Waiting messages", None if found.no_depth else charts.depth(found.spans)),
        (
            "lateness",
            "Late messages",
            None if "exit" in not_observed else charts.lateness(found.spans),
        ),
    ]
    drawn = [
        # analytics.charts.svg escapes every text that it writes.
        (key, title, figure, SafeString(svg.draw(figure, title)) if figure else "")
        for key, title, figure in figures
    ]
    context = {
        **head_context(request, topology),
        "tab": "history",
        "widths": history.LABELS,
        "history": found,
        "figures": [] if found.is_empty else drawn,
        "by": width,
    }
    return render(request, "analytics/topology_history.html", context)
