"""What can be watched, and the states that are sent of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import LEFT, NOT_OBSERVED
from analytics.scheduled.pages.export import record
from analytics.scheduled.pages.lines import Reader
from analytics.scheduled.projection import project, settle
from analytics.scheduled.queries.listing import read_observations
from delayboard.dead_letters.replay.summary import Pace, _pace_of, describe_pace
from delayboard.live import subjects
from delayboard.live.changed_rows import scheduled_rows
from delayboard.models import BatchState, ChangeKind, ItemState, ReplayBatch, ScheduledChange
from tests.analytics.builders import an_entry, an_exit
from tests.builders import make_broker, make_pair
from tests.delayboard.builders import a_message, a_publication, parked, shop
from tests.delayboard.replay_rows import a_batch
from tests.topology.builders import NOON, a_snapshot
from topology.models import Broker, Topology
from topology.operations.finding_rows import replace_counted
from topology.snapshot import QueueNumbers, Report
from topology.snapshots import Latest


@pytest.fixture
def broker(transactional_db: None) -> Broker:
    return make_broker()


def a_replay(broker: Broker, state: BatchState = BatchState.DRAFT) -> ReplayBatch:
    parked_messages = parked(broker, a_message(b"1"), a_message(b"2"))
    return a_batch(broker, parked_messages, state, [ItemState.DONE, ItemState.PENDING])


def test_the_version_of_a_broker_changes_with_its_numbers_reports_and_troubles(
    broker: Broker,
) -> None:
    snapshot = a_snapshot(shop(), {"orders": QueueNumbers(messages=1200, consumers=0)})
    more = a_snapshot(shop(), {"orders": QueueNumbers(messages=1201, consumers=0)})
    states = (
        Latest(None, NOON, "4s so far.", reading_since=NOON),
        Latest(None, NOON, "5s so far.", reading_since=NOON),
        Latest(None, NOON, "No answer."),
        Latest(snapshot, NOON),
        Latest(snapshot, NOON, "No answer."),
        Latest(more, NOON),
    )
    versions = [subjects.make_broker_version(broker, one) for one in states]
    until = datetime.now(UTC) + timedelta(hours=1)
    replace_counted(broker, [Report("L02", "orders", 3, "3 are stuck.")], until)
    versions.append(subjects.make_broker_version(broker, states[-1]))
    assert len(set(versions)) == len(versions)
    assert subjects.make_broker_version(broker, states[-1]) == versions[-1]


def test_the_version_of_a_replay_changes_with_its_progress(broker: Broker) -> None:
    batch = a_replay(broker, BatchState.RUNNING)
    found = subjects.find("replays", f"{batch.pk}-running", 2.0)
    assert found is not None
    versions = [found.read().version]
    for change in ({"doubled": 1}, {"state_why": "Too many."}, {"state": BatchState.PAUSED}):
        ReplayBatch.objects.update(**change)
        versions.append(found.read().version)
    assert len(set(versions)) == len(versions)
    assert found.read().version == versions[-1]


def test_the_pace_of_a_replay_is_that_of_the_last_seconds(broker: Broker) -> None:
    pace = Pace()
    assert pace.of(0, NOON) is None
    assert pace.of(100, NOON + timedelta(seconds=1)) == 100
    for second in range(2, 30):
        last = pace.of(100 + second, NOON + timedelta(seconds=second))
    assert last == 1
    _pace_of.cache_clear()
    batch = a_replay(broker, BatchState.RUNNING)
    assert describe_pace(batch, NOON) == ()
    ReplayBatch.objects.update(done=F("done") + 1)
    batch.refresh_from_db()
    assert describe_pace(batch, NOON + timedelta(seconds=2))[0] == "0.5 per second"
    batch.state = BatchState.PAUSED
    assert describe_pace(batch, NOON + timedelta(seconds=3)) == ()


def test_a_subject_is_found_by_its_address_or_is_none(broker: Broker) -> None:
    publication = a_publication(broker)
    batch = a_replay(broker)
    for kind, name in (
        ("brokers", broker.slug),
        ("publications", str(publication.pk)),
        ("replays", str(batch.pk)),
    ):
        found = subjects.find(kind, name, 2.0)
        assert found is not None
        assert (found.key, found.broker) == (f"{kind}/{name}", broker)
        assert found.read().version
    assert subjects.find("publications", publication.pk.hex, 2.0) is not None


NOTHING = [
    ("brokers", "none"),
    ("brokers", ""),
    ("publications", "3f2b1c6e-0000-4000-8000-000000000000"),
    ("publications", "no-uuid"),
    ("replays", "999"),
    ("replays", "-1"),
    ("replays", "one"),
    ("replays", "²"),
    ("replays", "9" * 30),
    ("replays", "9" * 5000),
    ("message", "999"),
    ("message", "one"),
    ("secrets", "1"),
    ("parked", "1;2"),
    ("parked", "1;2;"),
    ("scheduled", "1;x;3"),
]


@pytest.mark.parametrize(("kind", "name"), NOTHING)
def test_what_does_not_exist_is_no_subject(broker: Broker, kind: str, name: str) -> None:
    assert subjects.find(kind, name, 2.0) is None


@pytest.mark.both_databases
@pytest.mark.django_db
def test_new_to_a_list_are_later_messages_of_its_own_brokers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_broker(name="Other")
    first = parked(broker, a_message(b"1"))[0]
    here = subjects.find("parked", f"{broker.pk};{first.pk};{first.pk}", 2.0)
    both = subjects.find("parked", f"{other.pk},{broker.pk};;{first.pk}", 2.0)
    assert here is not None
    assert both is not None
    parked(other, a_message(b"2"))
    assert (here.read().version, both.read().version) == ("0", "1")
    parked(broker, a_message(b"3"))
    assert (here.read().version, both.read().version) == ("1", "2")
    assert here.read().rows == {first.pk: "parked"}
    monkeypatch.setattr(subjects, "MOST_NEW", 2)
    assert both.read().version == "2+"


def make_blind(broker: Broker) -> Topology:
    """A topology of which nobody sees what leaves."""
    params = {"queue": "mails", "delays": "1h"}
    return Topology.objects.create(
        broker=broker,
        slug="mails",
        name="mails",
        kind="delay_queues",
        params=params,
        state="applied",
    )


@pytest.mark.django_db
def test_list_page_file_and_command_name_an_exit_only_if_it_was_recorded(broker: Broker) -> None:
    now = datetime.now(UTC)
    pair, blind = make_pair(broker), make_blind(broker)
    entered = now - timedelta(seconds=20)
    project(pair, [an_entry("seen", entered), an_exit("seen", now)])
    project(blind, [an_entry("settled", entered, tracking_id="t")])
    assert settle([blind], now) == 1
    project(blind, [an_entry("not_observed", entered)])
    rows = list(ScheduledMessage.objects.all())
    ids = [row.pk for row in rows]
    with CaptureQueriesContext(connection) as of_one:
        scheduled_rows([broker], ids[:1])
    with CaptureQueriesContext(connection) as of_all:
        live = scheduled_rows([broker], ids)
    assert len(of_all) == len(of_one)
    endings = {row.message_id: live[row.pk] for row in rows}
    assert endings == {"seen": LEFT, "settled": NOT_OBSERVED, "not_observed": NOT_OBSERVED}
    reader = Reader(None)
    files = {row.message_id: record(reader.line(row, now))["state"] for row in rows}
    assert files == endings
    assert read_observations(["t"])["t"].arrived_at is None


@pytest.mark.django_db
def test_the_page_of_a_message_is_loaded_again_when_it_left_or_is_changed(broker: Broker) -> None:
    pair = make_pair(broker)
    project(pair, [an_entry("m", datetime.now(UTC) + timedelta(hours=1))])
    row = ScheduledMessage.objects.get()
    found = subjects.find("message", str(row.pk), 2.0)
    assert found is not None
    assert found.broker == broker
    versions = [found.read().version]
    change = ScheduledChange.objects.create(
        broker=broker,
        topology=pair,
        message=row,
        kind=ChangeKind.CANCEL,
        key=row.key,
        due_at=datetime.now(UTC),
    )
    versions.append(found.read().version)
    change.state = "done"
    change.save()
    versions.append(found.read().version)
    ScheduledMessage.objects.update(left_at=datetime.now(UTC))
    versions.append(found.read().version)
    assert len(set(versions)) == len(versions)
