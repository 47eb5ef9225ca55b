"""Replays: a draft with its verdicts, its options, start, pause, resume, cancel, outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Router, Status

from analytics.events import clean
from delayboard.api import schemas
from delayboard.api.guard import make_page, needs, open_broker, require_name
from delayboard.api.problem import Problem
from delayboard.api.views.dead_letters import check_selection
from delayboard.dead_letters.replay import batch_state, make_draft, summary
from delayboard.dead_letters.replay import options as optional
from delayboard.dead_letters.replay.options import OptionError, Options
from delayboard.models import MessageGroup, ReplayBatch, ReplayItem
from delayboard.models.replay import ENDED_BATCH
from topology import access, redaction
from topology.database.paging import read_page
from topology.models import Broker, Role, State, Topology

router = Router()
PAGE = 100


@router.get("/replays", response=schemas.Page[schemas.Replay], **needs(Role.VIEWER))
def list_replays(
    request: HttpRequest, broker: str = "", open: bool = False, after: str = ""
) -> Any:
    """The replays, the newest first; with `open` those that have not ended."""
    rows = ReplayBatch.objects.filter(broker__in=access.choose_brokers(request).shown)
    rows = rows.exclude(state__in=ENDED_BATCH) if open else rows
    return make_page(
        read_page(
            rows.select_related("broker", "work", "requested_by").defer("parked_messages"),
            after,
            PAGE,
        ),
        summary.make_replay_record,
    )


@router.post(
    "/brokers/{slug:broker}/replays", response={202: schemas.Replay}, **needs(Role.OPERATOR)
)
def draft_replay(
    request: HttpRequest, response: HttpResponse, broker: str, body: schemas.ReplayRequest
) -> Any:
    """Prepare a draft. It publishes nothing: read its dry run, then start it."""
    row = open_broker(request, broker, Role.OPERATOR)
    check_selection(body)
    options = _read_options(row, body, {})
    user: Any = request.user
    if body.group is not None:
        group = get_object_or_404(MessageGroup, pk=body.group, broker=row)
        batch = make_draft.draft_group(user, group, options)
    elif body.query is not None:
        query = body.query.replace("\x00", "")
        batch = make_draft.draft_query(user, row, query, options)
    else:
        batch = make_draft.draft_messages(user, row, body.parked_messages or (), options)
    return _accepted(request, response, batch)


@router.get("/replays/{int:replay}", response=schemas.Replay, **needs(Role.VIEWER))
def get_replay(request: HttpRequest, replay: int) -> Any:
    """The state, the counts and the outcome of a replay."""
    batch = _open(request, replay)
    return summary.make_outcome_record(batch, hides=_hides(request, batch))


@router.get("/replays/{int:replay}/dry-run", response=schemas.DryRun, **needs(Role.VIEWER))
def get_dry_run(request: HttpRequest, replay: int) -> Any:
    """The verdicts: how many messages go where, and whether they would arrive."""
    batch = _open(request, replay)
    return summary.make_dry_run_record(batch, redaction.rules_for(request.user, batch.broker))


@router.get(
    "/replays/{int:replay}/items", response=schemas.Page[schemas.ReplayItem], **needs(Role.VIEWER)
)
def list_items(request: HttpRequest, replay: int, show: str = "", after: str = "") -> Any:
    """The messages of a replay in their order; `show` is a state, bad, repeats or was-died."""
    batch = _open(request, replay)
    if show and show not in summary.SHOWN:
        raise Problem(422, f"Send one of {', '.join(summary.SHOWN)}.", {"show": "Unknown."})
    hides = _hides(request, batch)
    page = summary.read_page(batch, summary.ItemFilter(show, None), after)

    def show_item(item: ReplayItem) -> dict[str, Any]:
        route = summary.redact_route(item.route) if item.route and hides else item.route
        error = "A redaction rule hides the reason." if item.error and hides else item.error
        return {
            "position": item.position,
            "parked_message": item.parked_message_id,
            "message_id": item.message_id,
            "state": item.state,
            "verdict": route.verdict if route else error,
            "is_good": route.is_good if route else None,
            "may_be_duplicated": item.may_be_duplicated,
            "outcome": item.outcome,
            "error": error,
        }

    return make_page(page, show_item)


@router.post(
    "/replays/{int:replay}/options", response={202: schemas.Replay}, **needs(Role.OPERATOR)
)
def change_replay(
    request: HttpRequest, response: HttpResponse, replay: int, body: schemas.ReplayOptions
) -> Any:
    """Change options of a draft; Delayboard repeats the dry run."""
    batch = _open(request, replay, Role.OPERATOR)
    known = optional.format_options(optional.read_batch_options(batch))
    make_draft.change_options(request.user, batch, _read_options(batch.broker, body, known))
    return _accepted(request, response, batch)


@router.post("/replays/{int:replay}/start", response={202: schemas.Replay}, **needs(Role.OPERATOR))
def start_replay(
    request: HttpRequest, response: HttpResponse, replay: int, body: schemas.ReplayStart
) -> Any:
    """Let the worker publish the messages of a draft, the canary or the first stage first.

    Where the broker needs an approval, the first person requests it and another one starts.
    """
    batch = _open(request, replay, Role.OPERATOR)
    require_name(batch.broker, body.confirm)
    known = optional.read_batch_options(batch)
    said = {"name", "reason", "link"}
    sent = body.model_dump(
        exclude=said | {"despite_verdict", "confirm", "approves"}, exclude_none=True
    )
    if batch.is_draft and sent:
        options = optional.read_options(optional.format_options(known) | _as_texts(sent))
        if options != known:
            make_draft.change_sending(request.user, batch, options)
    if body.model_dump(include=said, exclude_none=True):
        texts = (getattr(body, name) or getattr(batch, name) for name in ("name", "reason", "link"))
        batch_state.describe(batch, *(clean(text).strip() for text in texts))
    despite_verdict, approves = body.despite_verdict, body.approves
    batch_state.start(request.user, batch, despite_verdict=despite_verdict, approves=approves)
    return _accepted(request, response, batch)


@router.post("/replays/{int:replay}/pause", response={202: schemas.Replay}, **needs(Role.OPERATOR))
def pause_replay(request: HttpRequest, response: HttpResponse, replay: int) -> Any:
    """Publish nothing more until it is resumed."""
    return _act(request, response, replay, batch_state.pause, changes=False)


@router.post("/replays/{int:replay}/resume", response={202: schemas.Replay}, **needs(Role.OPERATOR))
def resume_replay(request: HttpRequest, response: HttpResponse, replay: int) -> Any:
    """Continue a paused replay, or one that observes its canary."""
    return _act(request, response, replay, batch_state.resume, changes=True)


@router.post("/replays/{int:replay}/cancel", response={202: schemas.Replay}, **needs(Role.OPERATOR))
def cancel_replay(request: HttpRequest, response: HttpResponse, replay: int) -> Any:
    """What is not published yet stays parked; in the undo period that is everything."""
    return _act(request, response, replay, batch_state.cancel, changes=False)


def _act(
    request: HttpRequest,
    response: HttpResponse,
    pk: int,
    do: Callable[[Any, ReplayBatch], None],
    *,
    changes: bool,
) -> Any:
    batch = _open(request, pk, Role.OPERATOR, changes=changes)
    do(request.user, batch)
    return _accepted(request, response, batch)


def _accepted(request: HttpRequest, response: HttpResponse, batch: ReplayBatch) -> Any:
    batch.refresh_from_db()
    response["Location"] = f"/api/v1/replays/{batch.pk}"
    return Status(202, summary.make_outcome_record(batch, hides=_hides(request, batch)))


def _open(
    request: HttpRequest, pk: int, role: Role = Role.VIEWER, *, changes: bool = True
) -> ReplayBatch:
    rows = ReplayBatch.objects.select_related("broker", "work", "requested_by", "parking__work")
    batch = get_object_or_404(rows.defer("parked_messages"), pk=pk)
    access.require(request.user, batch.broker, role, request=request if changes else None)
    return batch


def _hides(request: HttpRequest, batch: ReplayBatch) -> bool:
    return summary.hides_targets(batch, redaction.rules_for(request.user, batch.broker))


def _read_options(broker: Broker, body: schemas.ReplayOptions, known: Mapping[str, str]) -> Options:
    """Raises OptionError."""
    names = set(schemas.ReplayOptions.model_fields) - {"topology"}
    given = _as_texts(body.model_dump(include=names, exclude_none=True))
    if body.topology is not None:
        rows = Topology.objects.filter(broker=broker, state=State.APPLIED, slug=body.topology)
        if (topology := rows.first()) is None:
            raise OptionError({"topology": "Send the slug of an applied topology of this broker."})
        given["topology_id"] = str(topology.pk)
    return optional.read_options(dict(known) | given)


def _as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """The options as the form of the page sends them; a number of seconds is a duration."""
    texts = {}
    for name, value in values.items():
        text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
        texts[name] = f"{text}s" if name.endswith("_seconds") else text
    return texts
