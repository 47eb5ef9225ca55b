"""How templates write durations, moments, counts and sizes, and the links around a page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import template
from django.conf import settings
from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from analytics.models import Firehose, Probe, Run, ScheduledMessage, Slo
from analytics.observation import untapped
from analytics.results.read import budgets_of, last_day
from analytics.results.section import percent
from analytics.results.slo import attainment
from analytics.scheduled.pages.lines import ScheduledLine
from analytics.scheduled.queries import listing
from delayboard.changes.check import find_obstacles
from delayboard.changes.take import CHANGE_HEADER, headers_of
from delayboard.columns import COLUMNS, read_columns
from delayboard.dead_letters.retrying import waits_in_work_queue
from delayboard.live.changed_rows import make_message_version
from delayboard.live.subjects import make_broker_version, make_run_version
from delayboard.models import BackgroundTask, ChangeState, DeadLetterQueue, ScheduledChange
from delayboard.models.background_task import task_key
from delayboard.models.scheduled_change import OPEN
from delayboard.now.navigation import PAGES
from delayboard.now.problems import Link
from topology import access, snapshots
from topology.content.text import SHORT_ID, count_text, format_bytes
from topology.database import paging
from topology.delays import format_delay, format_ms, format_span
from topology.models import Broker, Role, State, Topology
from topology.patterns.chain.params import Params as ChainParams
from topology.patterns.chain.params import chain_of
from topology.snapshots import Latest
from topology.structure.taps import describe_observation

register = template.Library()

PROBES_SHOWN = 5
# Pages whose address can name a broker.
OF_BROKERS = frozenset(page.url_name for page in PAGES if page.has_brokers)
_NO_OPERATOR = "A change needs the role operator on the broker."


@register.filter
def trace_address(trace_id: str) -> str:
    """Where the trace is shown; "" without TRACE_URL."""
    return settings.TRACE_URL.replace("{trace_id}", trace_id)


@register.inclusion_tag("delayboard/_forwarder.html")
def forwarder(topology: Topology) -> dict[str, Any]:
    """How the forwarder of a topology does, where it has one of ours."""
    needs_one = topology.state == State.APPLIED and bool(topology.forwarders)
    background_task = (
        BackgroundTask.objects.filter(key=task_key("wait", topology.slug)).first()
        if needs_one
        else None
    )
    return {"needs_one": needs_one, "background_task": background_task, "topology": topology}


@register.inclusion_tag("delayboard/_observation.html", takes_context=True)
def observation(context: Context, topology: Topology) -> dict[str, Any]:
    """How an adopted or incompletely tapped topology is observed, and the switches."""
    missing = untapped(topology)
    if topology.state != State.APPLIED or not (missing or topology.is_adopted):
        return {}
    broker, user = topology.broker, context["request"].user
    has_firehose = Firehose.objects.filter(broker=broker).exists()
    is_inside = waits_in_work_queue(topology)
    could = {tap.phase for tap in topology.pattern.taps(topology.parsed) if not tap.destination}
    params = topology.parsed
    uses_firehose = has_firehose and bool(missing) and not is_inside
    return {
        "request": context["request"],
        "csrf_token": context.get("csrf_token"),
        "topology": topology,
        "means": [
            (label, _name_means(phase, missing, has_firehose=has_firehose, is_inside=is_inside))
            for label, phase in (("Entries", "entry"), ("Deliveries", "exit"))
        ],
        "why": (
            describe_observation(chain_of(params))
            if isinstance(params, ChainParams) and not uses_firehose
            else ()
        ),
        "can_record": topology.is_recordable,
        "may_operate": access.may(user, broker, Role.OPERATOR),
        "needs_firehose": not (has_firehose or is_inside) and could != {"entry", "exit"},
        "uses_firehose": uses_firehose,
        "may_switch": access.may(user, broker, Role.ADMIN),
    }


def _name_means(
    phase: str, missing: Collection[str], *, has_firehose: bool, is_inside: bool
) -> str:
    if is_inside:
        return "not observed: messages wait inside the work queue"
    if phase not in missing:
        return "observed by a tap"
    if has_firehose:
        return "observed by the firehose"
    if phase == "entry":
        return "not observed: only messages published by Delayboard are listed"
    return "not observed: messages are listed until they are due"


@register.inclusion_tag("analytics/_slo_line.html")
def slo_line(topology: Topology) -> dict[str, Any]:
    """The target of a topology and what the last 28 days left of its error budget."""
    target = Slo.objects.filter(topology=topology).first()
    if target is None:
        return {"topology": topology}
    figures = budgets_of([topology], last_day())[topology.slug]
    month = attainment(figures.late, target.percent, target.within_ms)
    is_generated = figures.total("generated") > 0
    context = {"target": target, "topology": topology, "is_generated": is_generated}
    if month.share is None or month.budget_left is None:
        return context
    return context | {"attainment": percent(month.share), "month": month}


@register.inclusion_tag("topology/_probe_rows.html")
def probe_rows(topology: Topology) -> dict[str, Any]:
    """The latest probes of a topology, the newest first, with the texts of their cells."""
    rows = Probe.objects.filter(topology=topology).order_by("-pk")[:PROBES_SHOWN]
    return {"probes": [(row, format_delay(row.delay), row.status, _late(row)) for row in rows]}


def _late(row: Probe) -> str:
    late = row.lateness
    return "–" if late is None else format_span(late)


@register.inclusion_tag("analytics/_next_due.html")
def next_due(topology: Topology) -> dict[str, Any]:
    """The waiting message of a topology that is due next, or overdue for longest."""
    if topology.state != State.APPLIED:
        return {}
    row = listing.waiting([topology.broker], topology_slug=topology.slug).first()
    return {"row": row, "topology": topology}


@register.simple_tag
def parker(row: DeadLetterQueue | None) -> BackgroundTask | None:
    """How the parker of a watched queue does."""
    if row is None or not row.parks_automatically:
        return None
    return BackgroundTask.objects.filter(key=task_key("park", row.pk)).first()


@register.simple_tag
def with_changes(
    lines: Sequence[ScheduledLine], operated: Collection[Broker]
) -> list[tuple[ScheduledLine, ScheduledChange | None, str]]:
    """Each line of waiting messages, the requested change, and why none can be requested."""
    rows = ScheduledChange.objects.filter(message__in=[line.row.pk for line in lines])
    requested = {row.message_id: row for row in rows.filter(state__in=OPEN)}
    brokers = {broker.pk for broker in operated}
    own = [line.row for line in lines if line.row.broker_id in brokers]
    others = {line.row.pk: _NO_OPERATOR for line in lines if line.row.broker_id not in brokers}
    obstacles = find_obstacles(own, timezone.now()) | others
    return [(line, requested.get(line.row.pk), obstacles.get(line.row.pk, "")) for line in lines]


@register.simple_tag
def change_obstacle(row: ScheduledMessage) -> str:
    """Why no change of a message can be requested; "" for no known reason."""
    return find_obstacles([row], timezone.now()).get(row.pk, "")


@register.simple_tag
def change_of(row: ScheduledMessage) -> ScheduledChange | None:
    """The change of a message that is requested or done; None when nothing changes it."""
    states = (*OPEN, ChangeState.DONE)
    return ScheduledChange.objects.filter(message=row, state__in=states).order_by("pk").last()


@register.simple_tag
def count_open_changes(topology: Topology) -> int:
    """How many changes of its messages are requested and have not taken effect."""
    return ScheduledChange.objects.filter(topology=topology, state__in=OPEN).count()


@register.simple_tag
def broker_version(broker: Broker, known: Latest) -> str:
    """What a live page of the broker compares."""
    return make_broker_version(broker, known)


@register.simple_tag
def run_version(run: Run) -> str:
    """What a live page of a nightly run compares."""
    return make_run_version(run)


@register.simple_tag
def message_version(row: ScheduledMessage) -> str:
    """What a live page of the message compares."""
    return make_message_version(row, timezone.now())


@register.simple_tag
def changes_of(
    row: ScheduledMessage,
) -> list[tuple[ScheduledChange, ScheduledMessage | None, bool]]:
    """The changes of a message, oldest first, each with the listed message that was published in
    its place; before them, with True, the change and the message that it stands for itself.
    """
    changes = ScheduledChange.objects.filter(broker=row.broker_id).select_related("message")
    alike = ScheduledMessage.objects.filter(topology=row.topology_id, key=row.key)
    number = paging.row_number(str(headers_of(row).get(CHANGE_HEADER, "")))
    stood_for = changes.filter(pk=number, key=row.key) if number else changes.none()
    found = [(one, one.message, True) for one in stood_for]
    for one in changes.filter(message=row).order_by("pk"):
        others = alike.filter(headers_json__contains=CHANGE_HEADER).order_by("pk")
        copies = (other for other in others if headers_of(other).get(CHANGE_HEADER) == str(one.pk))
        found.append((one, next(copies, None), False))
    return found


@register.filter
def delay(value: timedelta | None) -> SafeString | str:
    """A duration in at most two units, the exact one as title; a dash for None."""
    if value is None:
        return "–"
    short, whole = format_span(value), format_delay(value)
    return short if short == whole else SafeString(f'<span title="{whole}">{short}</span>')


@register.filter
def exact_delay(value: timedelta | None) -> str:
    """A duration for a field or an address."""
    return "" if value is None else format_delay(value)


register.filter("delay_ms", format_ms)


@register.filter
def delay_seconds(value: float) -> str:
    """A measured duration of so many seconds."""
    return format_ms(1000 * value)


@register.filter
def number(value: int | None) -> str:
    """A count in groups of three: "12 345"; a dash for None."""
    return count_text(value)


register.filter("bytesize", format_bytes)


@register.simple_tag(takes_context=True)
def shown_columns(context: Context, name: str) -> Collection[str]:
    """The columns of a list that the address names, or that the user has chosen."""
    request = context["request"]
    return read_columns(request.user, name, request.GET.get("columns"))


@register.inclusion_tag("_partials/_columns.html", takes_context=True)
def column_menu(context: Context, name: str, shown: Collection[str]) -> dict[str, Any]:
    request = context["request"]
    lines = [(key, label, key in shown) for key, label in COLUMNS[name].items()]
    # What is chosen now goes before what a saved view showed.
    here = request.path + query(context, columns=None)
    return {"name": name, "lines": lines, "next": here, "csrf_token": context["csrf_token"]}


@register.filter
def short_id(value: object) -> str:
    """The first eight characters of a long id; other texts whole.

    An id is long from twice as many on, and without spaces: a short one says more whole.
    """
    text = str(value)
    is_long = len(text) >= 2 * SHORT_ID and not any(map(str.isspace, text))
    return text[:SHORT_ID] if is_long else text


def relative_text(then: datetime, now: datetime) -> str:
    """ "3m ago", "in 1h 20m", "now": the same words as times.js writes."""
    seconds = int(abs(now - then).total_seconds())
    if not seconds:
        return "now"
    # From a minute on by the minute: an age that changes each second distracts.
    span = format_span(timedelta(seconds=seconds - seconds % 60 if seconds >= 60 else seconds))
    return f"{span} ago" if now > then else f"in {span}"


@register.filter
def relative(value: datetime | None) -> SafeString | str:
    """A moment as <time>: relative words that tick, the exact UTC time as title."""
    if value is None:
        return "–"
    title = f"{timezone.localtime(value):%Y-%m-%d %H:%M:%S %Z}"
    return _time(value, title, relative_text(value, timezone.now()), " data-relative")


@register.filter
def exact(value: datetime | None) -> SafeString | str:
    """A moment as <time> in the site's time zone, to the second."""
    if value is None:
        return "–"
    local = timezone.localtime(value)
    text = f"{local:%Y-%m-%d %H:%M:%S}"
    return _time(value, f"{text} {local:%Z}", text, "")


def _time(value: datetime, title: str, text: str, flag: str) -> SafeString:
    """Quick, for a page has hundreds: none of these texts has a sign that HTML would read."""
    return SafeString(f'<time datetime="{value.isoformat()}" title="{title}"{flag}>{text}</time>')


@register.simple_tag(takes_context=True, name="link_url")
def link_of_broker(context: template.Context, link: Link) -> str:
    """The link as of `link_url`, with the broker of the page, where the address can name one."""
    broker: Broker | None = context.get("broker")
    if broker and link.url_name in OF_BROKERS and "topology" not in link.query:
        link = replace(link, query={"broker": broker.slug, **link.query})
    return link_url(link)


def link_url(link: Link) -> str:
    """The address of a page that a domain module names."""
    return link.address


@register.simple_tag
def page_url(page: Sequence[str | int]) -> str:
    """The address of a page: the name of its URL, and the arguments."""
    name, *arguments = page
    return reverse(str(name), args=arguments)


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: Any) -> str:
    """The page's own query string with some parameters set, or removed where None or ""."""
    parameters = context["request"].GET.copy()
    for name, value in changes.items():
        parameters.pop(name, None)
        if value not in (None, ""):
            parameters[name] = str(value)
    return f"?{parameters.urlencode()}"


@register.inclusion_tag("_partials/_sort_head.html", takes_context=True)
def sort_head(context: template.Context, first: str, label: str) -> dict[str, str]:
    """The head of a column that the list can be sorted by; `sort` of the page is its order.

    `first` is the order that one click asks for, a second one asks for the other.
    """
    name = first.removeprefix("-")
    other = name if first.startswith("-") else f"-{name}"
    wanted = other if context["sort"] == first else first
    url = query(context, sort=wanted, after=None)
    order = {name: "ascending", f"-{name}": "descending"}.get(context["sort"], "")
    return {"label": label, "order": order, "url": url}


@register.simple_tag(takes_context=True)
def cleared_query(context: template.Context) -> str:
    """The query string of a list without its filter: the broker alone."""
    slug = context["request"].GET.get("broker", "")
    return f"?{urlencode({'broker': slug})}" if slug else "?"


@register.simple_tag(takes_context=True)
def may_audit(context: template.Context) -> bool:
    """Whether the signed-in person may read the audit log."""
    request = context.get("request")
    return request is not None and access.may_audit(request.user)


@register.simple_tag(takes_context=True)
def silent_brokers(context: template.Context) -> list[tuple[Broker, str]]:
    """The brokers of the user that cannot be read, each with the reason, "" while it is unknown."""
    silent = snapshots.silent(access.visible_brokers(context["user"]))
    return [
        (broker, known.error if (known := snapshots.latest(broker.pk)) else "") for broker in silent
    ]
