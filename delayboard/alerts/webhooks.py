"""Events for programs: found, stored as deliveries, signed and sent (Standard Webhooks).

Deliveries are messages of receivers with the channel SIGNED: delayboard/alerts/task.py claims them,
tries them again and reports failures, as those of alerts. Redaction holds, because an event has
ids, names, counts and a link, and no part of a message.
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import hmac
import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from analytics.models import NightlyReport, Run
from analytics.results.nightly_report import first_day
from analytics.results.period import complete_at
from delayboard.alerts.heartbeat import call, check_web_address
from delayboard.alerts.messages import MINIMUM_DURATION, AddressRefused
from delayboard.models.alert import (
    AlertChannel,
    AlertMessage,
    AlertProblem,
    AlertReceiver,
    AlertState,
)
from delayboard.models.message_group import MessageGroup
from delayboard.models.replay import ENDED_BATCH, ReplayBatch
from delayboard.now.problems import BURNING, Link, ProblemKind
from topology import access, audit
from topology.models import Broker, FindingPeriod
from topology.models.secrets import seal_secret

# Time by which a transaction may commit late and still give its event.
OVERLAP = timedelta(hours=1)
LONGEST_NAME = 100
PREFIX = "whsec_"
EVENTS = {
    "group.created": "A group of dead letters is created",
    "dead_letters.growing": "Dead letters of a queue grow",
    "replay.paused": "A replay is paused",
    "replay.finished": "A replay has ended",
    "finding.appeared": "A finding appears",
    "finding.resolved": "A finding is resolved",
    "target.burning": "A target uses up its error budget",
    "topology.drifted": "A topology is not in sync",
    "report.ready": "A nightly report is ready",
}
TEST = "test"
# Problem that alerts keep -> the event of its begin.
_OF_PROBLEMS = {
    ProblemKind.DEAD_LETTERS.value: "dead_letters.growing",
    ProblemKind.REPLAY_PAUSED.value: "replay.paused",
    ProblemKind.SLO.value: "target.burning",
    ProblemKind.DRIFT.value: "topology.drifted",
}


class NotSent(Exception):
    """The message was not accepted; the text is a sentence without secrets."""

    status: int | None = None


class NotAnswered(NotSent):
    """Delayboard stopped waiting. The service may still deliver the message."""


@dataclass(frozen=True)
class Event:
    """`key` is the same each time it is found; `broker` None is no single broker's."""

    type: str
    key: str
    at: datetime
    broker: Broker | None
    path: str
    data: dict[str, Any]


def write_deliveries(now: datetime) -> None:
    """Store a delivery of each new event for each webhook that wants it. Within the caller's
    transaction."""
    hooks = list(AlertReceiver.objects.filter(channel=AlertChannel.SIGNED, is_enabled=True))
    if not hooks:
        return
    since = min(one.events_from or now for one in hooks)
    found = sorted(find_events(since, now), key=lambda one: one.at)
    for hook in hooks:
        wanted = [
            one
            for one in found
            if one.type in hook.events
            and one.at > (hook.events_from or now)
            and (hook.broker_ids is None or one.broker is None or one.broker.pk in hook.broker_ids)
        ]
        # Each was stored after it happened, by clocks that may differ.
        first = min((one.at for one in wanted), default=now)
        known = hook.messages.exclude(event="").filter(created_at__gte=min(first, now) - OVERLAP)
        stored = set(known.values_list("event", flat=True))
        AlertMessage.objects.bulk_create(
            AlertMessage(
                receiver=hook,
                title=one.type,
                body=_write_body(one),
                event=one.key,
                created_at=now,
            )
            for one in wanted
            if one.key not in stored
        )
        if hook.events_from is None or hook.events_from < now - OVERLAP:
            AlertReceiver.objects.filter(pk=hook.pk).update(events_from=now - OVERLAP)


def find_events(since: datetime, now: datetime) -> Iterator[Event]:
    """What happened after `since`, of all brokers."""
    for group in MessageGroup.objects.filter(created_at__gt=since).select_related("broker"):
        assert group.created_at is not None
        path = Link("", "message_group", (group.broker.slug, str(group.pk))).address
        data = {"group": group.pk, "queue": group.parked_from or group.died_in}
        data |= {"messages": group.total}
        yield _event("group.created", group.pk, group.created_at, group.broker, path, data)
    ended = ReplayBatch.objects.filter(state__in=ENDED_BATCH, state_at__gt=since)
    for replay in ended.select_related("broker").defer("parked_messages"):
        path = Link("", "replay_batch", (str(replay.pk),)).address
        data = {"replay": replay.pk, "state": replay.state, "selected": replay.selected}
        data |= {name: getattr(replay, name) for name in ("done", "failed", "unknown", "cancelled")}
        yield _event("replay.finished", replay.pk, replay.state_at, replay.broker, path, data)
    is_new = Q(appeared_at__gt=since) | Q(resolved_at__gt=since)
    for row in FindingPeriod.objects.filter(is_new).select_related("broker"):
        path = Link("", "topology:findings", (row.broker.slug,)).address
        data = {"finding": row.key, "rule": row.rule, "title": row.title}
        data |= {"objects": row.objects_count}
        if row.appeared_at > since:
            yield _event("finding.appeared", row.pk, row.appeared_at, row.broker, path, data)
        if row.resolved_at and row.resolved_at > since:
            yield _event("finding.resolved", row.pk, row.resolved_at, row.broker, path, data)
    lasted = Q(since_at__gt=since, since_at__lte=now - MINIMUM_DURATION)
    problems = AlertProblem.objects.filter(lasted, kind__in=_OF_PROBLEMS)
    for problem in problems.select_related("broker"):
        is_short = problem.resolved_at and problem.resolved_at - problem.since_at < MINIMUM_DURATION
        is_burning = problem.identity.startswith(BURNING.format(""))
        if is_short or (problem.kind == ProblemKind.SLO and not is_burning):
            continue
        data = {"sentence": problem.sentence, "severity": problem.severity}
        at, of = problem.since_at, problem.broker
        yield _event(_OF_PROBLEMS[problem.kind], problem.pk, at, of, problem.path, data)
    for report in find_reports(now, since):
        day = str(report.day)
        link = Link("", "analytics:reports", query={"from": day}).address
        yield _event("report.ready", day, report.made_at, None, link, {"day": day})


def _event(
    kind: str, pk: object, at: datetime, broker: Broker | None, path: str, data: dict[str, Any]
) -> Event:
    return Event(kind, f"{kind}/{pk}", at, broker, path, data)


def find_reports(now: datetime, made_after: datetime) -> Iterator[NightlyReport]:
    """The nightly reports of whole past days, without their files."""
    computed_at = Run.objects.filter(day=OuterRef("day")).values("finished_at")
    stored = NightlyReport.objects.filter(day__gte=first_day(now), day__lt=now.date())
    stored = stored.annotate(computed_at=Coalesce(Subquery(computed_at), "made_at"))
    for report in stored.filter(made_at__gt=made_after).defer("html", "pdf"):
        if min(report.made_at, report.computed_at) >= complete_at(report.day):
            yield report


def _write_body(event: Event) -> str:
    link = f"{settings.SITE_URL}{event.path}" if settings.SITE_URL else event.path
    broker = event.broker.slug if event.broker else None
    values = {
        "type": event.type,
        "timestamp": event.at.astimezone(UTC).isoformat(),
        "data": {"broker": broker, **event.data, "link": link},
    }
    return json.dumps(values, ensure_ascii=False)


def deliver(message: AlertMessage, now: datetime) -> int | None:
    """Post it; the status of the answer. Raises NotSent, and DecryptionError."""
    body = message.body.encode()
    name, seconds = f"msg_{message.pk}_{message.created_at:%Y%m%d%H%M%S}", str(int(now.timestamp()))
    signed = b".".join((name.encode(), seconds.encode(), body))
    key = b64decode(message.receiver.secret.removeprefix(PREFIX))
    signature = b64encode(hmac.digest(key, signed, "sha256")).decode()
    headers = {
        "Content-Type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{signature}",
    }
    status, error = call(message.receiver.address, body, headers)
    if error:
        refused = NotSent(error) if status else NotAnswered(error)
        refused.status = status
        raise refused
    return status


def list_webhooks() -> QuerySet[AlertReceiver]:
    return AlertReceiver.objects.filter(channel=AlertChannel.SIGNED).order_by("pk")


def create_webhook(
    user: Any, *, name: str, url: str, events: Collection[str], brokers: Collection[int] | None
) -> tuple[AlertReceiver, str]:
    """Store it; with the secret, which nobody can read again. Raises AddressRefused.

    `brokers` are ids, None for all.
    """
    name = name.strip()
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise AddressRefused(f"Enter a name with 1 to {LONGEST_NAME} characters.")
    if list_webhooks().filter(name=name).exists():
        raise AddressRefused(f"A webhook “{name}” exists. Enter another name.")
    address, _ = check_web_address(url, "https://example.org/hook")
    if not events or not set(events) <= set(EVENTS):
        raise AddressRefused(f"Select at least one event of: {', '.join(EVENTS)}.")
    if brokers is not None:
        known = access.visible_brokers(user).filter(pk__in=brokers).count()
        if not brokers or known < len(set(brokers)):
            raise AddressRefused("Select brokers that exist, or every broker.")
    secret = PREFIX + b64encode(secrets.token_bytes(32)).decode()
    with audit.recorded(user, "webhook created", what=name):
        made = AlertReceiver.objects.create(
            channel=AlertChannel.SIGNED,
            name=name,
            encrypted_address=seal_secret(address),
            encrypted_secret=seal_secret(secret),
            events=[one for one in EVENTS if one in events],
            broker_ids=None if brokers is None else sorted(set(brokers)),
            events_from=datetime.now(UTC),
            sends_alerts=False,
        )
    return made, secret


def delete_webhook(user: Any, hook: AlertReceiver) -> None:
    """With its deliveries."""
    with audit.recorded(user, "webhook deleted", what=hook.name):
        hook.delete()


def switch_webhook(user: Any, hook: AlertReceiver, *, is_enabled: bool) -> None:
    """A disabled one gets no events of this time, and waiting deliveries when it is enabled."""
    with audit.recorded(user, f"webhook {'enabled' if is_enabled else 'disabled'}", what=hook.name):
        values = {"is_enabled": is_enabled, "events_from": datetime.now(UTC)}
        AlertReceiver.objects.filter(pk=hook.pk, is_enabled=not is_enabled).update(**values)


def send_test(user: Any, hook: AlertReceiver) -> AlertMessage:
    now = datetime.now(UTC)
    event = Event(TEST, "", now, None, Link("", "webhooks").address, {})
    with audit.recorded(user, "webhook tested", what=hook.name):
        return AlertMessage.objects.create(
            receiver=hook, title=TEST, body=_write_body(event), is_test=True, created_at=now
        )


def send_again(user: Any, delivery: AlertMessage) -> bool:
    """Let the worker send it next, with the same id; False while it is being sent."""
    what = f"{delivery.title} to {delivery.receiver}"
    with audit.recorded(user, "webhook delivery sent again", what=what):
        rows = AlertMessage.objects.filter(pk=delivery.pk).exclude(state=AlertState.SENDING)
        waiting = {"state": AlertState.WAITING, "attempts": 0, "next_at": None, "ended_at": None}
        return bool(rows.update(**waiting))
