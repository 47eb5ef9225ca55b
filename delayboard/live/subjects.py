"""What can be watched, who may watch it, and the version of it now."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from analytics.models import LogImport, Run, ScheduledMessage
from delayboard.alerts.messages import make_log_version
from delayboard.dead_letters.replay.summary import make_page_version
from delayboard.live.changed_rows import make_message_version, parked_rows, scheduled_rows
from delayboard.models import ParkedMessage, Publication, PublishJob, ReplayBatch
from delayboard.now.board import share_overview
from delayboard.now.system import TaskLine, background_tasks_of, list_hosts, make_tasks_version
from delayboard.publishing.publish_job import make_job_version
from delayboard.publishing.track import track
from topology import access, snapshots
from topology.database import paging
from topology.graph.live_values import make_version, snapshot_version
from topology.models import Broker, QueueReport, Role
from topology.snapshots import Latest
from topology.views.background import SnapshotCache

STATE_SECONDS = 0.7
NOW_SECONDS = 1.0
ROWS_SECONDS = 2.0
# Most rows of a list that are watched; it shows fifty on a page.
MOST_ROWS = 200
MOST_NEW = 1000
_versions: SnapshotCache[str] = SnapshotCache()


@dataclass(frozen=True)
class News:
    """A page that was made with another version must be fetched again.

    `at` is the reference time of the page's age; `rows` are the states of listed messages by id.
    """

    version: str
    at: datetime | None = None
    rows: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """`read` works the version out, every `seconds`; one thread does it for all who watch.

    `broker` None is for whoever may see all of `brokers`, or any broker at all if these are
    none.
    """

    key: str
    broker: Broker | None
    read: Callable[[], News]
    seconds: float
    brokers: tuple[Broker, ...] = ()


ReadRows: TypeAlias = Callable[[Collection[Broker], Collection[int]], Mapping[int, str]]


def find(kind: str, name: str, poll_seconds: float) -> Subject | None:
    """The subject of /ws/<kind>/<name>/, None when there is none."""
    match kind:
        case "brokers":
            return _broker(Broker.objects.filter(slug=name).first(), poll_seconds)
        case "publications":
            return _of_row(kind, Publication, name, _read_publication)
        case "jobs":
            return _of_row(kind, PublishJob, name, _read_job)
        case "replays":
            return _batch(name)
        case "runs":
            return _run(name)
        case "imports":
            return _import(name)
        case "now":
            return _of_brokers(kind, name, _read_now)
        case "system":
            return _of_brokers(kind, name, _read_system)
        case "alerts":
            return Subject("alerts", None, lambda: _news(make_log_version()), ROWS_SECONDS)
        case "message":
            return _message(name)
        case "scheduled":
            return _rows(kind, name, scheduled_rows, ScheduledMessage)
        case "parked":
            return _rows(kind, name, parked_rows, ParkedMessage)
    return None


def may_watch(user: Any, subject: Subject) -> bool:
    if subject.brokers:
        return all(access.roles_for(user, subject.brokers).values())
    if subject.broker is None:
        return access.visible_brokers(user).exists()
    return access.may(user, subject.broker, Role.VIEWER)


def _news(version: str) -> News:
    return News(version, datetime.now(UTC))


def _broker(broker: Broker | None, poll_seconds: float) -> Subject | None:
    if broker is None:
        return None
    # Half the interval, so that a poll made for another page a moment ago serves here too, and
    # one of our own last turn does not.
    age = timedelta(seconds=poll_seconds / 2)

    def read() -> News:
        known = snapshots.fresh(broker, age)
        at = known.snapshot.taken_at if known.snapshot else None
        return News(make_broker_version(broker, known), at)

    return Subject(f"brokers/{broker.slug}", broker, read, poll_seconds)


def make_broker_version(broker: Broker, known: Latest) -> str:
    """Changes with what is known of a broker, and with what else is reported of its queues."""
    shown = known.snapshot
    numbers = _versions.get(broker.pk, shown, partial(snapshot_version, shown)) if shown else ""
    reports = QueueReport.objects.filter(broker=broker, until_at__gt=datetime.now(UTC))
    fields = reports.order_by("rule", "queue").values_list("rule", "queue", "number", "sentence")
    return make_version(numbers, known.error, known.reading_since is None, *fields)


def make_run_version(run: Run) -> str:
    return make_version(str(run.state), run.steps_done, run.steps, run.error)


def _of_row(
    kind: str, model: type[Publication | PublishJob], name: str, read: Callable[[uuid.UUID], News]
) -> Subject | None:
    try:
        found = model.objects.select_related("broker").filter(pk=uuid.UUID(name)).first()
    except ValueError:
        return None
    if found is None:
        return None
    return Subject(f"{kind}/{found.pk}", found.broker, partial(read, found.pk), STATE_SECONDS)


def _read_publication(key: uuid.UUID) -> News:
    publication = Publication.objects.select_related("topology").get(pk=key)
    now = datetime.now(UTC)
    return News(track(publication, now).version, now)


def _read_job(key: uuid.UUID) -> News:
    job = PublishJob.objects.select_related("work").defer("body", "properties").get(pk=key)
    return _news(make_job_version(job))


def _batch(name: str) -> Subject | None:
    """`<id>-<state>`: the page of another state has another address, and is loaded as a whole."""
    key = paging.row_number(name.partition("-")[0])
    rows = ReplayBatch.objects.select_related("broker", "work").defer("parked_messages")
    found = rows.filter(pk=key).first() if key is not None else None
    if key is None or found is None:
        return None

    def read() -> News:
        return _news(make_page_version(rows.get(pk=key)))

    return Subject(f"replays/{key}", found.broker, read, STATE_SECONDS)


def _message(name: str) -> Subject | None:
    """A scheduled message by its number."""
    rows = ScheduledMessage.objects.select_related("broker", "topology")
    key = paging.row_number(name)
    found = rows.filter(pk=key).first() if key is not None else None
    if key is None or found is None:
        return None

    def read() -> News:
        row, at = rows.filter(pk=key).first(), datetime.now(UTC)
        return News(make_message_version(row, at) if row else "", at)

    return Subject(f"message/{key}", found.broker, read, ROWS_SECONDS)


def _run(name: str) -> Subject | None:
    try:
        day = date.fromisoformat(name)
    except ValueError:
        return None

    def read() -> News:
        run = Run.objects.filter(day=day).first()
        return _news(make_run_version(run) if run else "")

    return Subject(f"runs/{day}", None, read, STATE_SECONDS)


def _import(name: str) -> Subject | None:
    if not name.isdecimal() or len(name) > 18:
        return None

    def read() -> News:
        row = LogImport.objects.select_related("work").filter(pk=int(name)).first()
        return _news(row.version if row else "")

    return Subject(f"imports/{name}", None, read, STATE_SECONDS)


def _of_brokers(kind: str, name: str, read: Callable[[tuple[Broker, ...]], News]) -> Subject | None:
    """The numbers of the brokers with these primary keys, parted by commas."""
    keys = _read_numbers(name)
    brokers = tuple(Broker.objects.filter(pk__in=keys).order_by("pk"))
    if not brokers:
        return None
    own = ",".join(str(broker.pk) for broker in brokers)
    return Subject(f"{kind}/{own}", None, partial(read, brokers), NOW_SECONDS, brokers)


def _rows(
    kind: str, name: str, read: ReadRows, model: type[ScheduledMessage | ParkedMessage]
) -> Subject | None:
    """The messages of a list: the numbers of brokers, of its messages, and of the newest message
    that there was, with semicolons. Its version is how many are new.
    """
    if name.count(";") != 2:
        return None
    owners, listed, last = name.split(";")
    brokers = tuple(Broker.objects.filter(pk__in=_read_numbers(owners)))
    ids, newest = _read_numbers(listed), paging.row_number(last)
    if not brokers or newest is None or len(ids) > MOST_ROWS or (listed and not ids):
        return None

    def read_list() -> News:
        new = model.objects.filter(broker__in=brokers, pk__gt=newest)[:MOST_NEW].count()
        version = f"{new}+" if new == MOST_NEW else str(new)
        return News(version, rows=read(brokers, ids) if ids else {})

    return Subject(f"{kind}/{name}", None, read_list, ROWS_SECONDS, brokers)


def _read_numbers(text: str) -> frozenset[int]:
    """The numbers in a text such as "1,2"; none when it is something else."""
    is_list = re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*", text, re.ASCII)
    return frozenset(map(int, text.split(","))) if is_list else frozenset()


def _read_now(brokers: tuple[Broker, ...]) -> News:
    found = share_overview(brokers, datetime.now(UTC))
    return News(found.version, found.at)


def _read_system(brokers: tuple[Broker, ...]) -> News:
    tasks = background_tasks_of(brokers)
    return _news(make_tasks_version([TaskLine(task) for task in tasks], list_hosts(tasks)))
