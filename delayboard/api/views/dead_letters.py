"""Dead-letter queues, groups, parked messages; parking, discarding, restoring."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Router, Status

from analytics.events import clean
from analytics.views.streaming import download
from delayboard.api import schemas
from delayboard.api.guard import (
    answers,
    list_page,
    make_page,
    needs,
    open_broker,
    require_format,
    require_name,
)
from delayboard.api.problem import Problem
from delayboard.dead_letters import discard, export_messages
from delayboard.dead_letters.import_messages import import_messages
from delayboard.dead_letters.parked import groups, park_request
from delayboard.dead_letters.parked.redact_cause import seen_group
from delayboard.dead_letters.queues import confirmed
from delayboard.dead_letters.queues.candidates import candidates
from delayboard.dead_letters.search import search_by
from delayboard.dead_letters.search.listing import Line
from delayboard.dead_letters.search.listing import list_page as list_messages
from delayboard.models import MessageGroup, ParkedChange, ParkedMessage, Parking
from topology import access, audit, redaction, snapshots
from topology.content.export_format import FORMS
from topology.database.paging import row_number
from topology.models import Broker, Role
from topology.redaction import HIDDEN

router = Router()
MOST_QUEUES = 300
GROUP_COLUMNS = tuple(schemas.Group.model_fields.keys() - {"id", "broker"})


@router.get(
    "/brokers/{slug:broker}/dead-letter-queues",
    response=schemas.Page[schemas.DeadLetterQueue],
    **needs(Role.VIEWER),
)
def list_queues(request: HttpRequest, broker: str, q: str = "") -> Any:
    """The dead-letter queues: confirmed and proposed ones, then the deepest others."""
    row = open_broker(request, broker)
    known = snapshots.fresh(row)
    if known.snapshot is None:
        raise Problem(503, known.error or f"{row.name} has not answered yet. Try again.")
    found = candidates(known.snapshot, confirmed.destinations(row, known.snapshot))
    now = datetime.now(UTC)
    shown = confirmed.queues(row, found, q, now, most=MOST_QUEUES, is_current=known.is_reachable)
    parts = {"confirmed": shown.confirmed, "proposed": shown.proposed, "other": shown.others}
    return list_page(
        (
            {
                "name": line.name,
                "status": status,
                "messages": line.numbers.messages,
                "parked": line.parked,
                "parks_automatically": bool(line.row and line.row.parks_automatically),
            }
            for status, lines in parts.items()
            for line in lines
        ),
        None,
    )


@router.get("/groups", response=schemas.Page[schemas.Group], **needs(Role.VIEWER))
def list_groups(
    request: HttpRequest,
    broker: str = "",
    q: str = "",
    sort: str = "",
    empty: str = "",
    after: str = "",
) -> Any:
    """The groups of parked messages, with the parameters of the page Dead letters."""
    brokers = access.choose_brokers(request).shown
    rules = redaction.rules_by_broker(request.user, brokers)
    return make_page(groups.page(brokers, groups.parse(request.GET.dict()), rules), _show_group)


@router.get(
    "/brokers/{slug:broker}/groups/{int:group}", response=schemas.Group, **needs(Role.VIEWER)
)
def get_group(request: HttpRequest, broker: str, group: int) -> Any:
    """One group, with the counts of those merged into it."""
    row = open_broker(request, broker)
    found = get_object_or_404(MessageGroup, broker=row, pk=group)
    rules = redaction.rules_for(request.user, row)
    return _show_group(seen_group(groups.with_merged_counts([found])[0], rules))


def _show_group(group: MessageGroup) -> dict[str, Any]:
    shown = {name: getattr(group, name) for name in GROUP_COLUMNS}
    return shown | {"id": group.pk, "broker": group.broker.slug}


@router.get(
    "/brokers/{slug:broker}/parked-messages",
    response=schemas.Page[schemas.ParkedLine],
    **needs(Role.VIEWER),
)
def list_parked(
    request: HttpRequest,
    response: HttpResponse,
    broker: str,
    q: str = "",
    oldest_first: bool = False,
    after: str = "",
) -> Any:
    """The parked messages that match the search `q` of the page, the newest first."""
    response["Cache-Control"] = "no-store"
    row = open_broker(request, broker)
    typed = q.replace("\x00", "").strip()
    search = search_by(request.user, row, typed)
    if oldest_first and search.reads_messages:
        raise Problem(422, "A search in headers and bodies has the newest first only.")
    search = replace(search, is_oldest_first=oldest_first)
    shown = list_messages(request.user, search, row_number(after))
    if shown.lines and shown.has_content:
        details = {"parked_messages": len(shown.lines)}
        audit.record(
            request.user, "parked messages listed", broker=row, what=typed, details=details
        )

    def show(line: Line) -> dict[str, Any]:
        one = line.row
        return {
            "id": one.pk,
            "queue": one.queue,
            "group": one.group_id,
            "state": one.state,
            "message_id": one.message_id,
            "deaths": HIDDEN if "deaths" in shown.hidden else one.deaths,
            "died_at": HIDDEN if "died_at" in shown.hidden else one.died_at,
            "parked_at": one.parked_at,
            "size": one.size,
            "repeat_of": one.repeat_of_id,
            "beginning": line.beginning,
        }

    return list_page(map(show, shown.lines), shown.found.edge)


@router.get(
    "/brokers/{slug:broker}/parked-messages/export",
    **answers(Role.OPERATOR, "application/x-ndjson", "text/csv"),
)
def export_parked(request: HttpRequest, broker: str, q: str = "", format: str = "jsonl") -> Any:
    """All parked messages that match, with headers and body, as JSON lines or csv."""
    row = open_broker(request, broker, Role.OPERATOR, changes=False)
    require_format(format, FORMS)
    query = q.replace("\x00", "").strip()
    search = search_by(request.user, row, query)
    rows = search.messages()
    lines = export_messages.export_audited(request.user, row, format, query, rows)
    answer: Any = download(request, lines, format, f"dead-letters-{row.slug}")
    answer[export_messages.NOT_INDEXED] = str(search.not_indexed().count())
    return answer


@router.post(
    "/brokers/{slug:broker}/parked-messages/import",
    response=schemas.ImportedMessages,
    **needs(Role.ADMIN),
)
def import_parked(request: HttpRequest, broker: str, name: str = "import.jsonl") -> Any:
    """Add the messages of JSON lines that an export wrote; the body has the file."""
    row = open_broker(request, broker, Role.ADMIN)
    tally = import_messages(request.user, row, clean(name), request.body.splitlines(keepends=True))
    wrong = [{"line": number, "sentence": sentence} for number, sentence in tally.wrong]
    columns = ("lines", "added", "known", "malformed", "summary")
    return {one: getattr(tally, one) for one in columns} | {"wrong": wrong}


@router.get(
    "/brokers/{slug:broker}/parked-messages/{int:message}",
    response=schemas.ParkedMessage,
    **needs(Role.OPERATOR),
)
def get_parked(request: HttpRequest, response: HttpResponse, broker: str, message: int) -> Any:
    """One parked message with headers and body, as far as the role may see them."""
    response["Cache-Control"] = "no-store"
    row = open_broker(request, broker, Role.OPERATOR)
    rows = ParkedMessage.objects.select_related("group", "broker", "body")
    found = get_object_or_404(rows, broker=row, pk=message)
    what = f"{found.pk} of {found.queue}"
    audit.record(request.user, "parked message read", broker=row, what=what)
    hidden = redaction.rules_for(request.user, row)
    return export_messages.make_record(found, bytes(found.body.data), hidden)


@router.post(
    "/brokers/{slug:broker}/parkings", response={202: schemas.Parking}, **needs(Role.OPERATOR)
)
def park_queue(
    request: HttpRequest, response: HttpResponse, broker: str, body: schemas.ParkingRequest
) -> Any:
    """Move all messages of a dead-letter queue into Delayboard; the worker does it."""
    row = open_broker(request, broker, Role.OPERATOR)
    snapshot = snapshots.fresh(row).snapshot
    parking = park_request.park_all(request.user, row, body.queue, snapshot)
    response["Location"] = f"/api/v1/brokers/{row.slug}/parkings/{parking.pk}"
    return Status(202, _show_parking(parking))


@router.get(
    "/brokers/{slug:broker}/parkings/{int:parking}", response=schemas.Parking, **needs(Role.VIEWER)
)
def get_parking(request: HttpRequest, broker: str, parking: int) -> Any:
    """The progress of a parking."""
    return _show_parking(_open_parking(open_broker(request, broker), parking))


@router.post(
    "/brokers/{slug:broker}/parkings/{int:parking}/cancel",
    response=schemas.Parking,
    **needs(Role.OPERATOR),
)
def cancel_parking(request: HttpRequest, broker: str, parking: int) -> Any:
    """What is not parked yet stays in the queue."""
    row = open_broker(request, broker, Role.OPERATOR, changes=False)
    found = _open_parking(row, parking)
    park_request.cancel(request.user, found)
    return _show_parking(_open_parking(row, parking))


def _open_parking(broker: Broker, pk: int) -> Parking:
    return get_object_or_404(Parking.objects.select_related("work", "broker"), pk=pk, broker=broker)


def _show_parking(parking: Parking) -> dict[str, Any]:
    columns = ("queue", "requested", "parked", "repeats")
    return {name: getattr(parking, name) for name in columns} | {
        "id": parking.pk,
        "broker": parking.broker.slug,
        "state": parking.work.state if parking.work else "",
    }


@router.post(
    "/brokers/{slug:broker}/parked-messages/discard",
    response={200: schemas.ParkedChange, 202: schemas.ParkedChange},
    **needs(Role.OPERATOR),
)
def discard_parked(
    request: HttpRequest,
    response: HttpResponse,
    broker: str,
    body: schemas.Selection,
    dry_run: bool = False,
) -> Any:
    """Discard parked messages; they can be restored. With `dry_run` it only counts them."""
    row = open_broker(request, broker, Role.OPERATOR, changes=not dry_run)
    check_selection(body)
    if dry_run:
        chosen = _choose(row, body) | {"keys": body.parked_messages}
        number = discard.count_chosen(request.user, row, discard.DISCARD, **chosen)
        counted = {"id": None, "state": "dry_run", "requested": number, "changed": 0}
        return Status(200, counted)
    require_name(row, body.confirm)
    return _change(request, response, row, discard.DISCARD, body)


@router.post(
    "/brokers/{slug:broker}/parked-messages/restore",
    response={200: schemas.ParkedChange, 202: schemas.ParkedChange},
    **needs(Role.OPERATOR),
)
def restore_parked(
    request: HttpRequest, response: HttpResponse, broker: str, body: schemas.Selection
) -> Any:
    """Restore discarded messages."""
    row = open_broker(request, broker, Role.OPERATOR)
    check_selection(body)
    return _change(request, response, row, discard.RESTORE, body)


@router.get(
    "/brokers/{slug:broker}/parked-changes/{int:change}",
    response=schemas.ParkedChange,
    **needs(Role.VIEWER),
)
def get_parked_change(request: HttpRequest, broker: str, change: int) -> Any:
    """The progress of many messages that are discarded or restored."""
    row = open_broker(request, broker)
    rows = ParkedChange.objects.select_related("work")
    return _show_change(get_object_or_404(rows, pk=change, broker=row))


def check_selection(body: Any) -> None:
    """Raises Problem unless it is exactly one of the three."""
    given = (body.parked_messages, body.group, body.query)
    if sum(one is not None for one in given) != 1:
        raise Problem(422, "Send one of parked_messages, group and query.")


def _change(
    request: HttpRequest,
    response: HttpResponse,
    broker: Broker,
    kind: discard.Kind,
    body: schemas.Selection,
) -> Any:
    if body.parked_messages is not None:
        number = discard.change_these(request.user, broker, kind, body.parked_messages)
        return Status(200, {"id": None, "state": "done", "requested": None, "changed": number})
    change = discard.change_all(request.user, broker, kind, **_choose(broker, body))
    if change.work is None:
        return Status(200, _show_change(change))
    response["Location"] = f"/api/v1/brokers/{broker.slug}/parked-changes/{change.pk}"
    return Status(202, _show_change(change))


def _choose(broker: Broker, body: schemas.Selection) -> dict[str, Any]:
    """The query or the group. Raises Http404."""
    chosen: dict[str, Any] = {"query": (body.query or "").replace("\x00", "")}
    if body.group is not None:
        chosen["group"] = get_object_or_404(MessageGroup, pk=body.group, broker=broker)
    return chosen


def _show_change(change: ParkedChange) -> dict[str, Any]:
    return {
        "id": change.pk,
        "state": change.work.state if change.work else "done",
        "requested": change.requested,
        "changed": change.changed,
    }
