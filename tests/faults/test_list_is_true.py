"""The list of what waits, against what was sent and received, while the worker dies and returns."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from subprocess import Popen

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from analytics.models import Gap, ScheduledMessage
from analytics.observation import observe
from analytics.scheduled.queries import listing
from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from tests.analytics.day_lines import read_day
from tests.brokers import Vhost, newest_generation
from tests.builders import address_of, eventually, make_user
from tests.faults.processes import environment, kill, started
from tests.faults.traffic import Course, Traffic, three_topologies
from tests.faults.truth import Listing, contradictions, due_errors
from topology.models import Broker, Role, State, Topology
from topology.patterns.retry_pair import params as retry_pair_params

WITHIN_SECONDS = 2.0
RESTART_SECONDS = 5.0
DUE_SECONDS = 0.05
LOOK_EVERY = 0.1
SHORT = Course(120, 12, (1, 4), (3,))
LONG = Course(1000, 60, (1, 20), (15, 40))


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> Path:
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"


@dataclass
class Watch:
    """Looks at the list again and again, and keeps when it could not be true."""

    broker: Broker
    page: Client
    looks: list[Listing] = field(default_factory=list)
    blind: list[tuple[float, float]] = field(default_factory=list)

    def look(self) -> None:
        begun = time.time()
        shown = Counter(listing.waiting([self.broker]).values_list("message_id", flat=True))
        self.looks.append(Listing(begun, time.time(), shown))

    def look_until(self, moment: float) -> None:
        while time.monotonic() < moment:
            self.look()
            time.sleep(LOOK_EVERY)

    def incomplete(self) -> int:
        """Of how many topologies the page says that their list is incomplete."""
        self.look()
        page = self.page.get(reverse("analytics:scheduled")).content.decode()
        return len(re.findall(r"The list of <a [^>]*>[^<]*</a> is incomplete", page))

    def reads_all(self) -> bool:
        self.look()
        topologies = list(Topology.objects.filter(broker=self.broker, state=State.APPLIED))
        observed = observe(topologies, datetime.now(UTC))
        return not any(one.is_silent for one in observed.values())


def course_of(watch: Watch, traffic: Traffic, worker: Popen[bytes], stack: ExitStack) -> None:
    """Look while messages flow; kill the worker, see that it is told, start another."""
    begun = time.monotonic()
    for at in traffic.course.kills:
        watch.look_until(begun + at)
        killed = time.time()
        kill(worker)
        eventually(lambda: watch.incomplete() == 3, "the page says that it is incomplete")
        worker = stack.enter_context(started("worker", variables=environment()))
        restarted_at = datetime.now(UTC)
        # How long Python takes to start on a busy machine is nobody's promise.
        eventually(partial(has_begun, restarted_at), "the recorders begin anew")
        watch.blind.append((killed, time.time() + RESTART_SECONDS))
        watch.look_until(time.monotonic() + RESTART_SECONDS)
        assert watch.reads_all(), "a restarted worker reads within 5 seconds"
    while not traffic.has_arrived:
        watch.look_until(time.monotonic() + 1)
        assert time.monotonic() - begun < traffic.course.seconds + 60, "messages do not arrive"
    watch.look_until(time.monotonic() + WITHIN_SECONDS + 1)


@pytest.mark.django_db(transaction=True)
@newest_generation
@pytest.mark.parametrize(
    "course", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_the_list_is_true_and_says_when_it_is_not(
    vhost: Vhost, event_log: Path, course: Course
) -> None:
    pair = retry_pair_params.Params("pair", timedelta(seconds=sum(course.delays) / 2))
    broker = three_topologies(vhost, pair)
    page, began_at = Client(), datetime.now(UTC)
    page.force_login(make_user("ada", Role.VIEWER))
    traffic, watch = Traffic(address_of(vhost), course, pair), Watch(broker, page)
    with ExitStack() as stack:
        worker = stack.enter_context(started("worker", variables=environment()))
        eventually(partial(has_begun, began_at, sign="beat_at"), "the recorders are at work")
        with traffic.flowing():
            course_of(watch, traffic, worker, stack)
    messages = traffic.messages
    assert len(messages) == course.messages
    wrong = contradictions(messages, watch.looks, within=WITHIN_SECONDS, blind=watch.blind)
    assert not wrong, reported(wrong)
    assert not watch.looks[-1].shown
    assert not Gap.objects.exists()
    assert entries(event_log) == set(messages)
    off = sorted(due_errors(messages, due_of(messages)).values(), reverse=True)
    # Who stamps a copy must get a processor first, which on a busy machine takes its time.
    assert off[len(off) // 20] < DUE_SECONDS, off[:20]
    assert off[0] < 10 * DUE_SECONDS, off[:20]


def has_begun(moment: datetime, *, sign: str = "started_at") -> bool:
    """Whether a recorder of each topology, and the index, gave this sign since then."""
    recorders = [
        task_key("record", slug) for slug in Topology.objects.values_list("slug", flat=True)
    ]
    background_tasks = BackgroundTask.objects.filter(key__in=[*recorders, "index"])
    return background_tasks.filter(**{f"{sign}__gte": moment}).count() == 4


def reported(wrong: Sequence[str]) -> str:
    return f"{len(wrong)} contradictions, such as:\n" + "\n".join(wrong[:30])


def entries(log: Path) -> set[str]:
    """The ids of all messages that entered a delay, as the log has them."""
    today = datetime.now(UTC).date()
    events = [e for day in (today - timedelta(days=1), today) for e in read_day(log, day)]
    return {event.message_id for event in events if event.kind == "scheduled"}


def due_of(names: Iterable[str]) -> dict[str, float]:
    rows = ScheduledMessage.objects.filter(message_id__in=names, due_at__isnull=False)
    return {row.message_id: row.due_at.timestamp() for row in rows if row.due_at}
