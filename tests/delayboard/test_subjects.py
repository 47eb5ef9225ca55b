"""What can be watched, and the states that are sent of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import LEFT, NOT_OBSERVED
from analytics.scheduled.pages.export import record
from analytics.scheduled.pages.lines import Reader
from analytics.scheduled.queries.listing import read_observations
from analytics.scheduled.queries.not_observed import settle
from analytics.scheduled.rows.projection import project
from delayboard.live import subjects
from delayboard.live.changed_rows import scheduled_state
from delayboard.live.page_state import (
    MOST_KEYS,
    Newest,
    Shown,
    batch_state,
    broker_state,
    state,
    track_state,
)
from delayboard.models import BatchState, ChangeKind, ItemState, ReplayBatch, ScheduledChange
from delayboard.publishing.track import Track
from tests.analytics.builders import an_entry, an_exit
from tests.builders import make_broker, make_pair
from tests.delayboard.builders import a_message, a_publication, parked, shop
from tests.delayboard.replay_rows import a_batch
from tests.topology.builders import NOON, a_snapshot
from topology.models import Broker, Topology
from topology.snapshot import QueueNumbers
from topology.snapshots import Latest


def test_a_broker_that_does_not_answer_keeps_its_numbers_and_says_so() -> None:
    snapshot = a_snapshot(shop(), {"orders": QueueNumbers(messages=1200, consumers=0)})
    good = broker_state(Latest(snapshot, NOON))
    assert (good["at"], good["error"], good["done"]) == (NOON.isoformat(), "", False)
    assert good["cells"]["broker/version"] == "4.3.6"
    assert good["cells"]["broker/alarms"] == "none"
    assert good["cells"]["broker/messages"].replace("\u202f", "") == "1200"
    stale = broker_state(Latest(snapshot, NOON, "No answer."))
    assert (stale["cells"], stale["error"]) == (good["cells"], "No answer.")
    unknown = broker_state(Latest(None, NOON, "No answer."))
    assert (unknown["at"], unknown["cells"], unknown["error"]) == ("", {}, "No answer.")
    assert {reported["reading"] for reported in (good, stale, unknown)} == {""}


def test_a_broker_that_is_being_read_for_the_first_time_is_no_trouble() -> None:
    reported = broker_state(Latest(None, NOON, "4s so far.", reading_since=NOON))
    assert (reported["at"], reported["cells"]) == ("", {})
    assert (reported["error"], reported["reading"]) == ("", "4s so far.")


def test_a_page_is_sent_what_it_shows_once_and_again_when_it_changed() -> None:
    first = state(at=NOON, cells={"a": "1", "b": "1", "c": "1"}, marks={"m": "busy", "n": "busy"})
    later = state(at=NOON, cells={"a": "2", "b": "1", "c": "2"}, marks={"m": "busy", "n": "full"})
    shown = Shown()
    assert shown.select_changes(first)["cells"] == {}
    assert shown.watch({"type": "watch", "keys": ["a", "b", "m", "gone"]})
    reported = shown.select_changes(first)
    assert (reported["cells"], reported["marks"]) == ({"a": "1", "b": "1"}, {"m": "busy"})
    reported = shown.select_changes(later)
    assert (reported["cells"], reported["marks"]) == ({"a": "2"}, {})
    assert shown.select_changes(later)["cells"] == {}
    # What was left out meanwhile may have been put anew into the page.
    assert shown.watch({"type": "watch", "keys": ["a"]})
    assert shown.watch({"type": "watch", "keys": ["a", "b"]})
    assert shown.select_changes(later)["cells"] == {"b": "1"}


def test_a_message_is_written_once_for_all_pages_that_show_and_have_the_same() -> None:
    first = Newest(state(at=NOON, cells={"a": "1", "b": "1"}))
    later = Newest({**state(at=NOON, cells={"a": "2", "b": "1"}), "seq": 1})
    early, equal, late, other = (Shown() for _ in range(4))
    for shown, keys in ((early, "ab"), (equal, "ba"), (late, "ab"), (other, "b")):
        assert shown.watch({"type": "watch", "keys": list(keys)})
    for shown in (early, equal, other):
        shown.write_changes(first)
    texts = [shown.write_changes(later) for shown in (early, equal, late, other)]
    cells = [json.loads(text)["cells"] for text in texts]
    assert cells == [{"a": "2"}, {"a": "2"}, {"a": "2", "b": "1"}, {}]
    assert texts[0] is texts[1]
    assert json.loads(equal.write_changes(later))["cells"] == {}


def test_of_more_keys_than_a_page_can_show_the_first_are_watched() -> None:
    keys = [f"k{n}" for n in range(MOST_KEYS + 1)]
    shown = Shown()
    assert shown.watch({"type": "watch", "keys": [*keys, "x" * 5000]})
    assert (
        len(shown.select_changes(state(at=NOON, cells=dict.fromkeys(keys, "1")))["cells"])
        == MOST_KEYS
    )


def test_a_settled_publication_is_done() -> None:
    found = track_state(Track("lost", "Gone.", is_settled=True), NOON)
    assert found["cells"] == {"publication/status": "Gone.", "publication/lateness": "–"}
    assert (found["marks"], found["done"]) == ({"publication": "lost"}, True)


@pytest.fixture
def broker(transactional_db: None) -> Broker:
    return make_broker()


def a_replay(broker: Broker, state: BatchState = BatchState.DRAFT) -> ReplayBatch:
    parked_messages = parked(broker, a_message(b"1"), a_message(b"2"))
    return a_batch(broker, parked_messages, state, [ItemState.DONE, ItemState.PENDING])


def test_a_batch_is_told_by_its_counts(broker: Broker) -> None:
    running = batch_state(a_replay(broker, BatchState.RUNNING), NOON, pace=0.5)
    cells = {name.partition("/")[2]: text for name, text in running["cells"].items()}
    counted = ("done", "returned", "failed", "unknown", "cancelled", "pending")
    assert [cells[name] for name in counted] == ["1", "0", "0", "0", "0", "1"]
    reported = (cells["settled"], cells["pace"], cells["remaining"])
    assert reported == ("1", "0.5 per second", "about 2s left")
    assert (cells["state"], running["done"]) == ("running", False)
    ended = batch_state(a_replay(broker, BatchState.CANCELLED), NOON)
    assert (ended["cells"]["replay/state"], ended["done"]) == ("cancelled", True)
    assert (ended["cells"]["replay/pace"], ended["cells"]["replay/remaining"]) == ("", "")


def test_a_page_of_a_batch_is_over_once_it_is_in_another_state(broker: Broker) -> None:
    batch = a_replay(broker, BatchState.WAITING)
    found = subjects.find("replays", f"{batch.pk}-waiting", 2.0)
    assert found is not None
    assert not found.read()["done"]
    ReplayBatch.objects.update(state=BatchState.RUNNING)
    assert found.read()["done"]
    plain = subjects.find("replays", str(batch.pk), 2.0)
    assert plain is not None
    assert not plain.read()["done"]


def test_a_pace_is_that_of_the_last_seconds() -> None:
    pace = subjects.Pace()
    assert pace.of(0, NOON) is None
    assert pace.of(100, NOON + timedelta(seconds=1)) == 100
    for second in range(2, 30):
        last = pace.of(100 + second, NOON + timedelta(seconds=second))
    assert last == 1


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
        assert found.read()["type"] == "state"
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
    ("replays", "1-nowhere"),
    ("replays", "9" * 30),
    ("replays", "9" * 5000),
    ("message", "999"),
    ("message", "one"),
    ("secrets", "1"),
]


@pytest.mark.parametrize(("kind", "name"), NOTHING)
def test_what_does_not_exist_is_no_subject(broker: Broker, kind: str, name: str) -> None:
    assert subjects.find(kind, name, 2.0) is None


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
    project(blind, [an_entry("unseen", entered)])
    rows = list(ScheduledMessage.objects.all())
    keys = [f"scheduled/{row.pk}" for row in rows]
    with CaptureQueriesContext(connection) as of_one:
        scheduled_state([broker], keys[:1])
    with CaptureQueriesContext(connection) as of_all:
        live = scheduled_state([broker], keys)
    assert len(of_all) == len(of_one)
    endings = {row.message_id: live["cells"][f"scheduled/{row.pk}"] for row in rows}
    assert endings == {"seen": LEFT, "settled": NOT_OBSERVED, "unseen": NOT_OBSERVED}
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
    versions = [found.read()["version"]]
    change = ScheduledChange.objects.create(
        broker=broker,
        topology=pair,
        message=row,
        kind=ChangeKind.CANCEL,
        key=row.key,
        due_at=datetime.now(UTC),
    )
    versions.append(found.read()["version"])
    change.state = "done"
    change.save()
    versions.append(found.read()["version"])
    ScheduledMessage.objects.update(left_at=datetime.now(UTC))
    versions.append(found.read()["version"])
    assert len(set(versions)) == len(versions)
