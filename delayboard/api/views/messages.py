"""Messages that wait in delays, and changes of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router, Schema, Status
from pydantic import Field

from analytics.models import ScheduledMessage
from analytics.scheduled.pages import export
from analytics.scheduled.pages.lines import Reader, ScheduledLine, load_list, make_summary
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import Filter, parse
from analytics.views.streaming import download
from delayboard.api import schemas
from delayboard.api.guard import answers, list_page, make_page, needs, require_format, require_name
from delayboard.api.problem import Problem
from delayboard.changes import request as changes
from delayboard.changes.check import ChangeVerdict, bound_again_when, check, is_read
from delayboard.dead_letters import retrying
from delayboard.models import ChangeKind, ScheduledChange
from delayboard.models.scheduled_change import UNDOABLE
from topology import access, redaction, snapshots
from topology.content.export_format import FORMS
from topology.database.paging import read_page, row_number
from topology.delays import read_moment
from topology.models import Broker, Role
from topology.redaction import Redaction

router = Router()
PAGE = 100


class RangeFilter(Schema):
    """What the filters of the pages share; times as there, such as `now`, `+1h` or
    2026-12-31T12:00.
    """

    broker: str = ""
    topology: str = ""
    destination: str = ""
    from_: str = Field(default="", alias="from")
    until: str = ""
    after: str = ""


class ChangeFilter(RangeFilter):
    id: list[str] = Field(default=[], max_length=schemas.MOST_IDS, description="as of the command")
    undoable: bool = Field(default=False, description="only changes that can be undone")


class MessageFilter(RangeFilter):
    text: str = ""
    overdue: str = Field(default="", description="1: only overdue messages")
    stuck: str = Field(default="", description="1: only messages that RabbitMQ cannot route")


class MessageExport(MessageFilter):
    id: list[str] = Field(default=[], max_length=schemas.MOST_IDS, description="as of the command")


def _record(line: ScheduledLine) -> dict[str, Any]:
    return {"kind": "message"} | export.record(line)


def _read_filter(
    request: HttpRequest, now: datetime
) -> tuple[list[Broker], Filter, dict[int, Redaction]]:
    """Raises Problem for a filter that is not valid."""
    brokers = access.choose_brokers(request).shown
    hidden = redaction.rules_by_broker(request.user, brokers)
    filters = listing.allowed(parse(request.GET.dict(), now), brokers, hidden)
    if filters.problems:
        raise Problem(422, " ".join(filters.problems.values()), filters.problems)
    return brokers, filters, hidden


@router.get("/scheduled", response=schemas.WaitingPage, **needs(Role.VIEWER))
def list_scheduled(request: HttpRequest, wanted: Query[MessageFilter]) -> Any:
    """The waiting messages that match, the soonest due first."""
    now = datetime.now(UTC)
    brokers, filters, hidden = _read_filter(request, now)
    shown = load_list(brokers, filters, now, hidden=hidden, after=row_number(wanted.after))
    return list_page(map(_record, shown.lines), shown.found.edge) | {
        "matching": shown.matching,
        "doubts": [f"{one.topology.slug}: {one.sentence}" for one in shown.doubts],
    }


@router.get("/scheduled/export", **answers(Role.VIEWER, "application/x-ndjson", "text/csv"))
def export_scheduled(
    request: HttpRequest, wanted: Query[MessageExport], format: str = "jsonl"
) -> HttpResponse:
    """All waiting messages that match, as JSON lines or csv, the soonest due first."""
    now = datetime.now(UTC)
    require_format(format, FORMS)
    brokers, filters, hidden = _read_filter(request, now)
    rows = listing.filter_waiting(brokers, filters, now)
    if wanted.id:
        rows = rows.filter(pk__in=set().union(*listing.read_ids(rows, wanted.id).values()))
    written = export.write(format, export.lines(rows, filters.query, hidden))
    answer: Any = download(request, written, format, "scheduled")
    return answer  # type: ignore[no-any-return]


@router.get("/scheduled/summary", response=schemas.WaitingSummary, **needs(Role.VIEWER))
def summarize_scheduled(request: HttpRequest, wanted: Query[MessageFilter]) -> Any:
    """How many messages wait and match, and why the list may be incomplete."""
    now = datetime.now(UTC)
    brokers, filters, _ = _read_filter(request, now)
    return make_summary(brokers, filters, now)


@router.get("/scheduled/{int:message}", response=schemas.WaitingMessage, **needs(Role.VIEWER))
def get_scheduled(request: HttpRequest, message: int) -> Any:
    """One message that waits or waited, without its body."""
    rows = ScheduledMessage.objects.select_related("broker", "topology__broker")
    row = get_object_or_404(rows, pk=message)
    access.require(request.user, row.broker, Role.VIEWER)
    reader = Reader({row.broker_id: redaction.rules_for(request.user, row.broker)})
    return _record(reader.line(row, datetime.now(UTC)))


@router.get("/retrying", response=schemas.Page[schemas.Retry], **needs(Role.VIEWER))
def list_retrying(request: HttpRequest, wanted: Query[MessageFilter]) -> Any:
    """The messages between two attempts that match, the soonest due first."""
    now = datetime.now(UTC)
    brokers, filters, hidden = _read_filter(request, now)
    known = zip(brokers, snapshots.fresh_all(brokers), strict=True)
    read = {broker: one.snapshot for broker, one in known if one.snapshot}
    after = row_number(wanted.after)
    shown = retrying.retrying(brokers, filters, read, now, hidden=hidden, after=after)
    return list_page(
        (
            _record(one.line) | {"round": one.round, "of": one.of, "failed": one.failed}
            for one in shown.retries
        ),
        shown.found.edge,
    )


@router.get(
    "/scheduled/changes", response=schemas.Page[schemas.ScheduledChange], **needs(Role.VIEWER)
)
def list_changes(request: HttpRequest, wanted: Query[ChangeFilter]) -> Any:
    """The requested changes that match, the newest first; `id` as of the command."""
    brokers, filters, _ = _read_filter(request, datetime.now(UTC))
    rows = changes.find_changes(filters, wanted.id).filter(broker__in=brokers)
    rows = rows.filter(UNDOABLE) if wanted.undoable else rows
    return make_page(read_page(rows, wanted.after, PAGE), changes.make_record)


@router.post(
    "/scheduled/changes",
    response={200: schemas.ChangeVerdicts, 202: schemas.ChangeVerdicts},
    **needs(Role.OPERATOR, "the broker of the messages"),
)
def request_changes(
    request: HttpRequest,
    response: HttpResponse,
    body: schemas.ChangeRequest,
    dry_run: bool = False,
) -> Any:
    """Cancel, reschedule or deliver waiting messages of one broker; the worker carries it out."""
    now = datetime.now(UTC)
    found = ScheduledMessage.objects.filter(pk__in=body.messages)
    rows = list(found.select_related("broker", "topology__broker").order_by("due_at", "pk"))
    brokers = {row.broker for row in rows}
    for broker in brokers:
        access.require(request.user, broker, Role.OPERATOR, request=None if dry_run else request)
    if len(brokers) != 1 or len(rows) < len(set(body.messages)):
        raise Problem(404, "Nothing was changed. Select waiting messages of one broker.")
    if body.kind not in ChangeKind.values:
        raise Problem(422, f"Send one of {', '.join(ChangeKind.values)}.", {"kind": body.kind})
    kind = ChangeKind(body.kind)
    to = read_moment(body.to, now) if kind == ChangeKind.RESCHEDULE else None
    is_risky = any(is_read(row) or bound_again_when(row) for row in rows)
    if dry_run:
        verdicts = check(rows, kind, now, to)
    else:
        require_name(rows[0].broker, body.confirm, is_needed=is_risky)
        verdicts = changes.request(request.user, rows, kind, to)
        response["Location"] = "/api/v1/scheduled/changes"
    document = {
        "verdicts": [_show(one) for one in verdicts],
        "sentences": changes.describe_verdicts(verdicts, kind, to),
        "is_risky": is_risky,
    }
    return Status(200 if dry_run else 202, document)


@router.post(
    "/scheduled/changes/{int:change}/undo",
    response=schemas.ScheduledChange,
    **needs(Role.OPERATOR),
)
def undo_change(request: HttpRequest, change: int) -> Any:
    """Undo a change that did not take effect yet."""
    rows = ScheduledChange.objects.select_related("broker", "topology")
    row = get_object_or_404(rows, pk=change)
    access.require(request.user, row.broker, Role.OPERATOR, request=request)
    is_undone = changes.undo(request.user, row)
    row.refresh_from_db()
    if not is_undone:
        raise Problem(409, f"The change was not undone. It is {row.get_state_display()}.")
    return changes.make_record(row)


def _show(verdict: ChangeVerdict) -> dict[str, Any]:
    return {
        "message": verdict.row.pk,
        "problem": verdict.problem,
        "takes_effect_at": verdict.takes_effect_at,
        "publishes_copy": verdict.is_copied,
        "other_messages": verdict.others,
    }
