"""Publishing one message or many, and their status."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Router, Status

from delayboard.api import schemas
from delayboard.api.guard import list_page, needs, require_name, require_operator
from delayboard.api.problem import Problem
from delayboard.api.views.brokers import refuse_form
from delayboard.forms.publish import PublishForm
from delayboard.models import Publication, PublishJob
from delayboard.publishing.publish_job import make_record, request_job, stop_job
from delayboard.publishing.publish_message import find_observer, predict_message, send
from delayboard.publishing.track import Track, track, track_all
from topology import access, snapshots
from topology.broker.errors import Blocked, Unreachable, alarm_sentence
from topology.database.paging import read_slice
from topology.models import Role

router = Router()
PAGE = 100


@router.post(
    "/publications",
    response={
        200: schemas.Prediction,
        201: schemas.Publication,
        202: schemas.PublishJob,
    },
    **needs(Role.OPERATOR, "the broker of the message"),
)
def publish(
    request: HttpRequest, response: HttpResponse, body: schemas.Publishing, dry_run: bool = False
) -> Any:
    """Publish a message; with `count` the worker publishes many, with `dry_run` nobody any.

    The answer does not wait for the arrival: read the publication until `state` is settled.
    """
    typed = body.model_dump(exclude={"confirm", "headers"}, exclude_none=True)
    typed |= {"headers": json.dumps(body.headers), "persistent": "1" if body.persistent else ""}
    require_operator(request)
    form = PublishForm(typed, brokers=access.visible_brokers(request.user, Role.OPERATOR))
    is_many = body.count is not None or body.rate is not None
    if not form.is_valid() or (is_many and not form.check_many()):
        refuse_form(form)
    broker, outgoing = form.chosen_broker, form.outgoing()
    access.require(request.user, broker, Role.OPERATOR, request=None if dry_run else request)
    known = snapshots.fresh(broker)
    if known.snapshot is None or known.error:
        raise Unreachable(f"Nothing was published. {known.error}")
    if not form.check_target(known.snapshot.definitions):
        refuse_form(form)
    prediction = predict_message(broker, known.snapshot, outgoing)
    if dry_run:
        observer = find_observer(broker, outgoing.topology, outgoing.target, prediction)
        sentence = f"{prediction.sentence} {observer.sentence}"
        return Status(200, {"broker": broker.slug, "state": "predicted", "sentence": sentence})
    require_name(broker, body.confirm)
    if known.snapshot.alarms:
        raise Blocked(f"Nothing was published. {alarm_sentence(known.snapshot.alarms)}")
    if is_many:
        assert body.count is not None
        assert body.rate is not None
        job = request_job(
            request.user, broker, outgoing, prediction, number=body.count, rate=body.rate
        )
        response["Location"] = f"/api/v1/publish-jobs/{job.pk}"
        return Status(202, make_record(job))
    row = send(request.user, broker, outgoing, prediction)
    response["Location"] = f"/api/v1/publications/{row.pk}"
    return Status(201, _show(row, track(row, datetime.now(UTC))))


@router.get("/publications", response=schemas.Page[schemas.Publication], **needs(Role.VIEWER))
def list_publications(request: HttpRequest, broker: str = "", after: str = "") -> Any:
    """The messages that Delayboard published, the newest first."""
    brokers = access.choose_brokers(request).shown
    rows = Publication.objects.filter(broker__in=brokers).select_related("broker", "topology")
    page = read_slice(rows, after, PAGE)
    found = track_all(page.rows, datetime.now(UTC))
    return list_page(map(_show, page.rows, found), page.edge)


@router.get("/publications/{uuid:publication}", response=schemas.Publication, **needs(Role.VIEWER))
def get_publication(request: HttpRequest, publication: UUID) -> Any:
    """What happened to a published message."""
    rows = Publication.objects.select_related("broker", "topology")
    row = get_object_or_404(rows, pk=publication)
    access.require(request.user, row.broker, Role.VIEWER)
    return _show(row, track(row, datetime.now(UTC)))


@router.get("/publish-jobs/{uuid:job}", response=schemas.PublishJob, **needs(Role.VIEWER))
def get_publish_job(request: HttpRequest, job: UUID) -> Any:
    """The progress of many messages."""
    return make_record(_open_job(request, job, Role.VIEWER))


@router.post("/publish-jobs/{uuid:job}/stop", response=schemas.PublishJob, **needs(Role.OPERATOR))
def stop_publish_job(request: HttpRequest, job: UUID) -> Any:
    """Publish nothing more of it."""
    row = _open_job(request, job, Role.OPERATOR)
    if not stop_job(request.user, row):
        raise Problem(409, "The job is not stopped, because it has ended.")
    row.work.refresh_from_db()
    return make_record(row)


def _open_job(request: HttpRequest, pk: UUID, role: Role) -> PublishJob:
    row = get_object_or_404(PublishJob.objects.select_related("broker", "work"), pk=pk)
    access.require(request.user, row.broker, role)
    return row


def _show(row: Publication, found: Track) -> dict[str, Any]:
    return {
        "id": row.pk,
        "broker": row.broker.slug,
        "topology": row.topology.slug if row.topology else None,
        "state": row.outcome.value,
        "sentence": found.sentence,
        "mark": found.mark,
        "is_settled": found.is_settled,
        "error": row.error,
        "message_id": row.message_id,
        "created_at": row.created_at,
        "due_at": row.due_at,
    }
