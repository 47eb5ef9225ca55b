"""Rows of the database for the states that a page can be in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from analytics.importing.requested import store_upload
from analytics.models import (
    Firehose,
    Gap,
    LogHost,
    LogImport,
    Minute,
    NightlyReport,
    Probe,
    Recording,
    Run,
    ScheduledBody,
    ScheduledMessage,
)
from analytics.results.load import replace_day
from delayboard.models import (
    AlertChannel,
    AlertMessage,
    AlertReceiver,
    AlertState,
    BackgroundTask,
    BatchState,
    ChangeKind,
    ChangeState,
    Interception,
    ItemState,
    ParkedMessage,
    Publication,
    PublishJob,
    ReplayBatch,
    ReplayOutcome,
    ScheduledChange,
)
from delayboard.models.publication import Sent
from tests.analytics import result_rows
from tests.delayboard.builders import a_message, parked
from tests.delayboard.replay_rows import a_bad_route, a_batch, a_route
from topology.models import AuditEntry, Broker, MissingBinding, Topology, Work, WorkState
from topology.models.work import TASK
from topology.work import create

FAILURE = "Spark ended with status 1: java.lang.OutOfMemoryError: Java heap space"
REFUSAL = (
    "The broker refused it: NOT_FOUND - no exchange 'orders-retry' in vhost '/'. "
    "Apply the topology again, or publish to another exchange."
)


def background_tasks(*subjects: Topology, at: datetime | None = None, error: str = "") -> None:
    """A task for the replays, one for the nightly run, one for each topology's recorder."""
    beat_at = at or timezone.now()
    error_at = beat_at if error else None
    common = {"started_at": beat_at, "beat_at": beat_at}
    BackgroundTask.objects.create(key="replay", name="Replay dead letters", **common)
    BackgroundTask.objects.create(key="nightly", name="Compute reports", **common)
    removed = {"Event log": 48, "Delivered messages": 1234567}
    moments = dict.fromkeys(["cleaned_at", "removed_at"], beat_at.isoformat())
    BackgroundTask.objects.create(
        key="cleaning",
        name="Delete what is past its keeping",
        details=moments | {"removed": removed},
        **common,
    )
    BackgroundTask.objects.bulk_create(
        BackgroundTask(
            key=f"record:{topology.slug}",
            name=f"Record {topology.name}"[:200],
            broker=topology.broker,
            last_error=error,
            last_error_at=error_at,
            details={"caught_up": not error, "events": 12345, "read_at": f"{beat_at:%FT%T}"},
            **common,
        )
        for topology in subjects
    )


def missing_bindings(levels: Topology, target: str) -> None:
    """Destinations that cannot be reached; two messages for the first are stuck."""
    now = timezone.now()
    since = now - timedelta(minutes=3)
    stated = {"topology": levels, "since_at": since, "from_at": since}
    MissingBinding.objects.create(destination=target, stuck=2, waiting=31, **stated)
    MissingBinding.objects.create(destination="archive", waiting=1, **stated)
    MissingBinding.objects.create(destination="parked_messages", stuck=1, restored_at=now, **stated)
    MissingBinding.objects.create(destination="", stuck=4, **stated)
    for number in (1, 2):
        ScheduledMessage.objects.create(
            broker=levels.broker,
            topology=levels,
            key=f"stuck-{number}",
            message_id=f"stuck-{number}",
            attempt=1,
            requested_delay=timedelta(minutes=1),
            entered_at=since - timedelta(minutes=1),
            due_at=since + timedelta(seconds=number),
            destination=target,
        )


def firehose(broker: Broker, *, error: str = "") -> None:
    """Its row, unless it is there, and its recorder; with an error it has lost copies too."""
    now = timezone.now()
    row, _ = Firehose.objects.get_or_create(broker=broker, defaults={"switched_on_by": "ada"})
    Firehose.objects.filter(pk=row.pk).update(read_at=now, lost_since=now if error else None)
    BackgroundTask.objects.create(
        key=f"firehose:{broker.slug}",
        name=f"Firehose of {broker.name}",
        broker=broker,
        started_at=now,
        beat_at=now,
        last_error=error,
        last_error_at=now if error else None,
        details={"recorded": 12345, "unknown": 0, "caught_up": True, "full": 0},
    )


def audit_entries(user: User, broker: Broker, names: Sequence[str]) -> None:
    AuditEntry.objects.bulk_create(
        AuditEntry(
            user=user,
            username=user.username,
            action=("message published", "queue peeked", "topology applied")[n % 3],
            broker=broker,
            broker_name=broker.name,
            what=name,
            outcome=REFUSAL if n % 5 == 4 else "done",
            details={"exchange": name, "messages": n} if n % 2 else {},
        )
        for n, name in enumerate(names)
    )


def publications(
    broker: Broker, user: User, names: Sequence[str], *, sent: Sent = Sent.CONFIRMED
) -> Publication:
    """One to each of these names; return the last."""
    made = Publication.objects.bulk_create(
        Publication(
            broker=broker,
            user=user,
            exchange=name,
            routing_key=name,
            message_id=name,
            size=1000 * n,
            sent=sent,
            predicted_delay_ms=15_000 * n,
            prediction=f"It waits {15 * n}s, then arrives in {name}.",
            error=REFUSAL if sent == Sent.REFUSED else "",
            confirmed_at=timezone.now() if sent == Sent.CONFIRMED else None,
        )
        for n, name in enumerate(names)
    )
    return made[-1]


def publish_job(broker: Broker, user: User) -> PublishJob:
    """One that failed, with messages that no queue took and one without an answer."""
    own = create("publish", broker.pk, broker=broker, user=user, total=2_000)
    Work.objects.filter(pk=own.pk).update(
        state=WorkState.FAILED, error=REFUSAL, ended_at=timezone.now()
    )
    return PublishJob.objects.create(
        broker=broker,
        created_by=user,
        work=own,
        routing_key="orders",
        number=2_000,
        rate=100,
        begun=1_000,
        published=990,
        returned=9,
        returned_why=REFUSAL,
        repeated=5,
        unanswered=[1_000],
        started_at=timezone.now() - timedelta(seconds=10),
    )


def batch(
    broker: Broker,
    user: User,
    names: Sequence[str],
    state: BatchState,
    items: Sequence[ItemState] = (ItemState.DONE,),
    error: str = "",
) -> ReplayBatch:
    """A replay of a message for each name; their states come round in turn."""
    now = timezone.now()
    messages = [
        a_message(b"%d" % number, message_id=name if number % 2 else None)
        for number, name in enumerate(names)
    ]
    parked_messages = parked(broker, *messages, queue=names[0], at=now)
    made = a_batch(
        broker,
        parked_messages,
        state,
        items,
        created_by=user,
        description=f"{len(names)} chosen parked messages",
        state_why=error,
        doubled=1,
        canary=3,
        canary_until=now + timedelta(hours=1),
        publish_at=now + timedelta(hours=1),
        undo_seconds=30,
    )
    _routes(made, names)
    made.items.filter(state=ItemState.DONE, position__lte=3).update(may_be_duplicated=True)
    made.items.filter(error__gt="").update(error=REFUSAL)
    _outcomes(made, parked_messages[-1], now)
    if made.work is not None:
        Work.objects.filter(pk=made.work.pk).update(error=error, done=397, total=1204)
    return made


def _routes(made: ReplayBatch, names: Sequence[str]) -> None:
    """One for each name, of which every fourth is bad."""
    endings = ("loops", "unroutable", "guarded", "stuck")
    for number, name in enumerate(names[1:], start=2):
        stated: dict[str, Any] = {
            "exchange": "" if number % 3 else name,
            "routing_key": name,
            "items_number": 1,
        }
        if number % 4 == 3:
            route = a_bad_route(made, endings[number % 16 // 4], **stated)
        else:
            route = a_route(made, after_ms=90_000 * (number % 5 // 4), **stated)
        made.items.filter(position=number).update(route=route)
    made.routes.filter(items_number=len(names)).update(items_number=1)


def _outcomes(made: ReplayBatch, died_as: ParkedMessage, at: datetime) -> None:
    done = made.items.filter(state=ItemState.DONE)
    keys = list(done.values_list("pk", flat=True))
    died, delivered = keys[: len(keys) // 4], keys[len(keys) // 4 : len(keys) // 2]
    made.items.filter(pk__in=died).update(
        outcome=ReplayOutcome.DIED, outcome_at=at, died_as=died_as
    )
    made.items.filter(pk__in=delivered).update(outcome=ReplayOutcome.DELIVERED, outcome_at=at)
    made.died, made.delivered = len(died), len(delivered)
    made.save()


def scheduled(topology: Topology, names: Sequence[str]) -> ScheduledMessage:
    """What waits: the first three are overdue, the last due in days. Return the last, with body."""
    now = timezone.now()
    made = ScheduledMessage.objects.bulk_create(
        ScheduledMessage(
            broker=topology.broker,
            topology=topology,
            key=name,
            message_id=name if n % 2 else "",
            content_id=f"{n:032x}",
            attempt=n % 12,
            requested_delay=timedelta(seconds=15 * 2 ** (n % 16)),
            entered_at=now - timedelta(seconds=60),
            due_at=now + timedelta(seconds=(n - 3) * 97),
            destination=names[n % 9 % len(names)],
            queue=name,
            size=7 ** (n % 9),
            correlation_id=name,
            exchange=name,
            routing_key=name,
            published_at=now - timedelta(seconds=61) if n % 3 else None,
            published_at_source="NServiceBus.TimeSent" if n % 3 else "",
            published_by=name if n % 4 else "",
            content_type="application/json",
            headers_json=json.dumps({"name": name, "tenant": n, "lines": [{"sku": name}, 2]}),
        )
        for n, name in enumerate(names)
    )
    ScheduledBody.objects.create(message=made[-1], body=b'{"order": 1, "lines": [1, 2, 3]}')
    return made[-1]


def changes(message: ScheduledMessage, user: User) -> None:
    """Changes of the message in each state, of one interception that is over."""
    now = timezone.now()
    interception = Interception.objects.create(
        broker=message.broker,
        name="delayboard.intercept.1",
        source="refunds",
        queue="refunds",
        bindings=[["refunds", {}]],
        queue_type="quorum",
        state="closed",
        work=Work.objects.create(kind="interception", subject=1, broker=message.broker),
    )
    ScheduledChange.objects.bulk_create(
        ScheduledChange(
            broker=message.broker,
            topology=message.topology,
            message=message if state == ChangeState.PENDING else None,
            interception=interception,
            kind=kind,
            key=message.key,
            destination=message.destination,
            due_at=message.due_at or now,
            new_due_at=now + timedelta(hours=2) if kind == ChangeKind.RESCHEDULE else None,
            state=state,
            error=REFUSAL if state == ChangeState.FAILED else "",
            requested_by=user,
        )
        for state, kind in zip(ChangeState, cycle(ChangeKind), strict=False)
    )


def probes(topology: Topology) -> None:
    """One that arrived, one that is overdue, one on its way."""
    now = datetime.now(UTC)
    for place, ago in enumerate((10, 5, 0)):
        at = now - timedelta(minutes=ago)
        late = {"arrived_at": at + timedelta(seconds=5.012)} if place == 0 else {}
        overdue = {"overdue_at": now} if place == 1 else {}
        Probe.objects.create(
            topology=topology,
            message_id=f"probe-{place}",
            delay=timedelta(seconds=5),
            created_at=at,
            sent_at=at,
            **late,
            **overdue,
        )


def minutes(topology: Topology, *, read_at: datetime) -> None:
    """An hour of traffic that ebbs and flows, of which a part is late and a part fails."""
    last_at = timezone.now().replace(second=0, microsecond=0)
    Recording.objects.create(topology=topology, read_at=read_at)
    Minute.objects.bulk_create(
        Minute(
            topology=topology,
            minute_at=last_at - timedelta(minutes=ago),
            entered=300 + (ago * 37) % 190,
            left=280 + ((ago + 1) * 37) % 190,
            late=ago % 7,
            lateness_json=json.dumps({"1": 200, "14": 80, "33": ago % 7}),
            died=ago % 4,
        )
        for ago in range(75)
    )


def gap(topology: Topology, why: str) -> None:
    now = timezone.now()
    Gap.objects.create(
        topology=topology,
        from_at=now - timedelta(hours=2),
        until_at=now - timedelta(hours=1),
        at_most=12345,
        why=why,
    )


def run(day: date, state: str, error: str = "") -> None:
    now = datetime.now(UTC)
    Run.objects.create(
        day=day,
        state=state,
        error=error,
        started_at=now,
        finished_at=now,
        lines=1234567,
        excluded={"torn": 1, "repeat": 2345, "no_entry": 12},
        step_seconds=[["Starting Spark", 5.25], ["Reading the lines of the day", 31.5]],
        peak_memory_bytes=1_234_567_890,
        spark_version="4.1.1",
        output=f"WARNING: Using incubator modules\nERROR {'abc' * 80}\n",
    )


def stored_report(day: date) -> None:
    NightlyReport.objects.create(
        day=day,
        made_at=timezone.now(),
        html="A report.",
        pdf_error="No PDF: Chromium is not installed.",
    )


def report(day: date, broker: Broker, names: Sequence[str]) -> None:
    """Figures of one day: a topology for each name, with two delays."""
    group = [{"broker": broker.slug, "topology": name[:80]} for name in names]
    replace_day(day, result_rows.a_result(day, group))


def alerts() -> None:
    """A receiver of each channel, and an alert in each state."""
    now = timezone.now()
    receivers = [
        AlertReceiver.objects.create(channel=channel, name=f"on-call {channel.label}")
        for channel in AlertChannel
    ]
    for state, receiver in zip(AlertState, receivers, strict=False):
        AlertMessage.objects.create(
            receiver=receiver,
            title="Delayboard: 1 problem",
            body="New problems:\n- orders: 3 messages are stuck. (since 2026-11-24 12:00 UTC)",
            state=state,
            attempts=6 if state == AlertState.FAILED else 1,
            error="The service answered with status 503." if state == AlertState.FAILED else "",
            created_at=now - timedelta(minutes=7),
        )
    signed = AlertReceiver.objects.filter(channel=AlertChannel.SIGNED)
    signed.update(events=["group.created", "replay.finished"], sends_alerts=False)
    for number, state in enumerate(AlertState):
        is_failed = state == AlertState.FAILED
        AlertMessage.objects.create(
            receiver=signed.get(),
            title="replay.finished",
            event=f"replay.finished/{number}",
            body='{"type": "replay.finished", "data": {"replay": 7, "state": "done"}}',
            state=state,
            attempts=6 if is_failed else 1,
            status=503 if is_failed else 204,
            error="The service answered with 503." if is_failed else "",
            created_at=now - timedelta(minutes=7),
        )


def hosts() -> None:
    """Three machines that record: one that works, one that was killed, and one that lags."""
    now = timezone.now()
    shared = {"is_sending": True, "keys": settings.KEYS_FINGERPRINT, "seen_at": now}
    LogHost.objects.create(name="web1-3fa9", **shared)
    old = {"seen_at": now - timedelta(minutes=9), "unread_bytes": 52_000}
    LogHost.objects.create(name="web2-02bb", **(shared | old))
    unsent = {"unsent_since": now - timedelta(hours=5), "unsent_bytes": 340_000_000}
    LogHost.objects.create(name="rack7.example.com-99d0", **(shared | unsent))
    names = [f"Recorder of {name}" for name in ("orders", "refunds", "stock")]
    for count, name in enumerate(names):
        task = BackgroundTask.objects.create(key=f"record:{name}", name=name, beat_at=now)
        owner = "web1-3fa9" if count else "rack7.example.com-99d0"
        Work.objects.create(kind=TASK, subject=task.pk, owner=owner, state=WorkState.RUNNING)


def log_import(user: User, broker: Broker) -> LogImport:
    """A file of another program, uploaded and tried."""
    foreign = Path(result_rows.__file__).parent / "importing" / "foreign_logs" / "sidekiq.jsonl"
    row = store_upload(user, foreign.name, [foreign.read_bytes()])
    row.broker, row.is_dry = broker, True
    problems = [{"number": 7, "why": "The field recorded_at: 'soon' is no number."}]
    days = [(timezone.now() - timedelta(days=1)).date().isoformat()]
    row.result = {"read": 1204, "added": 1190, "known": 0, "ignored": 13, "malformed": 1}
    row.result |= {"problems": problems, "days": days, "topologies": ["web_hook"]}
    row.save()
    return row
