"""Taking over what others built; the broker stands at the network's edge."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import responses
from pytest_django import Settings

from analytics.models import ScheduledMessage
from analytics.observation import untapped
from analytics.recorder.record import record
from delayboard.models.background_task import task_key
from delayboard.worker.tasks import list_tasks as wanted_background_tasks
from tests.builders import make_broker, make_pair, make_user
from tests.topology.builders import a_queue, a_snapshot
from tests.topology.test_provision import API, broker_says, last_entry, takes_changes
from topology.broker.errors import Refused, Unreachable
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Identity, Queue
from topology.models import Broker, Role, State, Topology
from topology.operations import adopt, provision
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.provisioning.recognition import recognize

pytestmark = pytest.mark.django_db

PARAMS = retry_pair_params.Params("orders", timedelta(seconds=5))
WHOLE = retry_pair.definitions(PARAMS)
LOST = Binding("orders", "orders", "orders")
INCOMPLETE = WHOLE.without([LOST.identity])
WAIT = busy_wait.definitions(busy_wait.EXAMPLE) | Definitions.of([Queue(busy_wait.EXAMPLE.queue)])
ODD = a_queue("orders", dlx="orders-retry", type="quorum")


@pytest.fixture
def broker() -> Broker:
    return make_broker()


@pytest.fixture
def event_log(tmp_path: Path, settings: Settings) -> Path:
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"


def adopted(broker: Broker, there: Definitions = WHOLE) -> Topology:
    broker_says(others=tuple(there))
    return adopt.adopt(make_user("ann", Role.OPERATOR), broker, "retry_pair", "orders")[0]


def requests_made() -> list[str]:
    return [str(call.request.method) for call in responses.calls]


@responses.activate
def test_adopting_writes_a_row_that_owns_nothing_and_changes_nothing(broker: Broker) -> None:
    row = adopted(broker)
    assert (row.state, row.name, row.owned, row.tap_type) == (State.APPLIED, "orders", [], "none")
    assert row.parsed == PARAMS
    assert row.applied_at is not None
    assert set(requests_made()) == {"GET"}
    entry = last_entry()
    assert (entry.action, entry.what, entry.username) == ("topology adopted", "orders", "ann")


@responses.activate
def test_what_is_adopted_stands_as_planned_and_is_not_recorded(broker: Broker) -> None:
    row = adopted(broker)
    snapshot = a_snapshot(WHOLE)
    assert provision.plan_for(row, snapshot).is_empty
    assert row.definitions == WHOLE
    assert not row.has_tap
    assert row.is_recordable
    assert row.is_adopted
    assert not row.observes_arrivals
    assert Topology.unobserved() == [row]
    assert untapped(row) == {"entry", "exit"}
    assert task_key("record", row.slug) not in wanted_background_tasks("me")


def adopted_wait(broker: Broker, *without: Identity) -> Topology:
    broker_says(others=tuple(WAIT.without(without)))
    name = busy_wait.title(busy_wait.EXAMPLE)
    return adopt.adopt(None, broker, "busy_wait", name)[0]


@responses.activate
def test_for_a_busy_wait_that_others_read_no_forwarder_of_ours_is_run(broker: Broker) -> None:
    params = busy_wait.EXAMPLE
    row = adopted_wait(broker)
    assert row.is_read_by_others
    assert task_key("wait", row.slug) not in wanted_background_tasks("me")
    mine = create_topology(None, make_broker(name="Mine"), "busy_wait", params)
    Topology.objects.filter(pk=mine.pk).update(state=State.APPLIED)
    assert task_key("wait", mine.slug) in wanted_background_tasks("me")


@responses.activate
def test_none_is_run_either_once_what_was_missing_of_it_was_created(broker: Broker) -> None:
    row = adopted_wait(broker, ("queue", f"{busy_wait.EXAMPLE.queue}-busy-wait"))
    takes_changes()
    assert provision.apply(None, row).created == 1
    assert row.state == State.APPLIED
    assert row.owned
    assert row.is_read_by_others
    assert row.forwarders == ()
    assert task_key("wait", row.slug) not in wanted_background_tasks("me")


@responses.activate
def test_it_is_verified_as_far_as_the_queue_that_others_read(broker: Broker) -> None:
    row = adopted_wait(broker)
    sentences = [check.sentence for check in provision.check(None, row).checks]
    assert "An external consumer reads this queue" in sentences[0]
    assert not any("run_forwarder" in sentence for sentence in sentences)


def test_one_of_ours_that_creates_nothing_is_not_adopted(broker: Broker) -> None:
    mine = create_topology(None, broker, "busy_wait", busy_wait.EXAMPLE)
    Topology.objects.filter(pk=mine.pk).update(state=State.APPLIED, tap_type="classic")
    mine.refresh_from_db()
    assert mine.owned == []
    assert not mine.is_adopted
    assert task_key("wait", mine.slug) in wanted_background_tasks("me")


@responses.activate
def test_tearing_down_what_was_adopted_deletes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "live_depths", lambda address, queues: {})
    row = adopted(broker)
    assert provision.remove(None, row).deletes == ()
    assert set(requests_made()) == {"GET"}
    assert (row.state, row.is_adopted) == (State.DELETED, True)


@responses.activate
def test_what_was_created_for_it_is_not_deleted_while_a_queue_of_others_leads_into_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "live_depths", lambda address, queues: {})
    row = adopted(broker, WHOLE.without([("exchange", "orders")]))
    takes_changes()
    provision.apply(None, row)
    responses.reset()
    broker_says(others=tuple(WHOLE))
    with pytest.raises(Refusal, match="queue “orders-retry” dead-letters into"):
        provision.remove(None, row, typed_name="orders")
    assert row.state == State.APPLIED


@responses.activate
def test_an_incomplete_one_is_adopted_and_its_plan_has_what_is_missing(broker: Broker) -> None:
    row = adopted(broker, INCOMPLETE)
    plan = provision.plan_for(row, a_snapshot(INCOMPLETE))
    assert [change.object for change in plan.select("create")] == [LOST]
    takes_changes()
    assert provision.apply(None, row).created == 1
    row.refresh_from_db()
    assert row.owned_identities == {LOST.identity}
    assert (row.tap_type, row.is_adopted) == ("none", True)


@responses.activate
def test_one_with_differences_is_adopted_and_cannot_be_applied(broker: Broker) -> None:
    row = adopted(broker, WHOLE.without([("queue", "orders")]) | Definitions.of([ODD]))
    with pytest.raises(Refusal, match=r"existing objects\. Delayboard changed nothing"):
        provision.apply(None, row)
    assert set(requests_made()) == {"GET"}


@responses.activate
@pytest.mark.parametrize(
    ("there", "kind", "name", "sentence"),
    [
        ([], "retry_pair", "orders", "no longer has “orders” of this pattern"),
        (list(WHOLE), "retry_pair", "other", "no longer has “other” of this pattern"),
        (list(WHOLE), "no such kind", "orders", "no longer has “orders” of this pattern"),
    ],
)
def test_what_is_not_there_is_not_adopted(
    broker: Broker, there: list[BrokerObject], kind: str, name: str, sentence: str
) -> None:
    broker_says(others=tuple(there))
    with pytest.raises(Refusal, match=sentence):
        adopt.adopt(None, broker, kind, name)
    assert Topology.objects.count() == 0


@responses.activate
def test_what_is_managed_is_not_adopted_again_unless_it_was_torn_down(broker: Broker) -> None:
    mine = make_pair(broker)
    sentence = "already manages “orders” as the topology “orders”"
    with pytest.raises(Refusal, match=sentence):
        adopted(broker)
    # A dry run says it too.
    with pytest.raises(Refusal, match=sentence):
        adopt.preview(broker, "retry_pair", "orders")
    Topology.objects.filter(pk=mine.pk).update(state=State.DELETED)
    user = make_user("bob", Role.OPERATOR)
    row, plan = adopt.adopt(user, broker, "retry_pair", "orders")
    assert row.pk != mine.pk
    assert plan.is_empty


@responses.activate
@pytest.mark.parametrize("there", [WHOLE, INCOMPLETE])
def test_recording_makes_the_tap_and_nothing_else(broker: Broker, there: Definitions) -> None:
    row = adopted(broker, there)
    takes_changes()
    made = provision.start_recording(None, row)
    tap = row.tap_with("classic")
    assert {change.object.identity for change in made.plan.changes} == {t.identity for t in tap}
    assert row.owned_identities == {obj.identity for obj in tap}
    assert (row.state, row.tap_type, row.has_tap) == (State.APPLIED, "classic", True)
    assert row.is_adopted
    assert task_key("record", row.slug) in wanted_background_tasks("me")
    assert last_entry().action == "recording enabled"


@responses.activate
def test_recording_is_refused_where_there_is_a_tap_or_nothing_to_tap(broker: Broker) -> None:
    mine = make_pair(broker)
    with pytest.raises(Refusal, match="has no more messages to record"):
        provision.start_recording(None, mine)
    Topology.objects.all().delete()
    row = adopted(broker)
    responses.reset()
    broker_says()
    with pytest.raises(Refusal, match=r"The exchange orders does not exist.* Delayboard"):
        provision.start_recording(None, row)
    row.refresh_from_db()
    assert (row.tap_type, row.owned) == ("none", [])


@responses.activate
def test_a_recording_that_fails_half_way_is_not_one_and_can_be_begun_again(
    broker: Broker,
) -> None:
    row = adopted(broker)
    responses.put(f"{API}/queues/nowhere/{row.tap_queue}", status=403, json={"reason": "no"})
    with pytest.raises(Refused):
        provision.start_recording(None, row)
    row.refresh_from_db()
    assert (row.state, row.tap_type, row.has_tap) == (State.APPLIED, "none", False)
    assert ("queue", row.tap_queue) in row.owned_identities
    responses.reset()
    broker_says(others=tuple(WHOLE))
    takes_changes()
    assert provision.start_recording(None, row).created == 3
    (put,) = [call.request for call in responses.calls if call.request.method == "PUT"]
    assert json.loads(put.body or "")["arguments"]["x-queue-type"] == "classic"


@responses.activate
def test_what_was_due_before_it_was_recorded_is_not_overdue_for_ever(
    broker: Broker, event_log: Path
) -> None:
    row = adopted(broker)
    takes_changes()
    provision.start_recording(None, row)
    assert row.applied_at is not None
    hour = timedelta(hours=1)
    of: dict[str, Any] = {"broker": broker, "topology": row, "attempt": 1, "key": "k"}
    for due_at in (row.applied_at - hour, row.applied_at + hour):
        ScheduledMessage.objects.create(
            due_at=due_at, entered_at=due_at - hour, requested_delay=hour, **of
        )
    for _ in range(2):
        with pytest.raises(Unreachable):
            record(row.pk, stop=Event(), beat=lambda counters: None)
    early, late = ScheduledMessage.objects.order_by("due_at")
    assert (early.left_at, late.left_at) == (early.due_at, None)


def seen_as(*objects: BrokerObject) -> list[tuple[str, str]]:
    """How the pair among these things is said to be."""
    snapshot = a_snapshot(Definitions.of(objects))
    (one,) = adopt.match_managed(make_broker(), recognize(snapshot).found, snapshot)
    return one.states


def test_a_sighting_says_how_complete_it_is() -> None:
    rest = WHOLE.without([LOST.identity, ("queue", "orders")])
    long = Arguments({**ODD.arguments, "x-max-length": 9})
    assert seen_as(*WHOLE) == [("ok", "complete")]
    assert seen_as(*INCOMPLETE) == [("warn", "1 of 6 objects missing")]
    assert seen_as(*rest, LOST, ODD) == [("error", "1 argument differs")]
    assert seen_as(*rest, Queue("orders", arguments=long)) == [
        ("warn", "1 of 6 objects missing"),
        ("error", "2 arguments differ"),
    ]


@pytest.mark.parametrize(
    ("state", "kind", "is_managed"),
    [
        (State.APPLIED, "retry_pair", True),
        (State.DELETED, "retry_pair", False),
        (State.APPLIED, "delay_levels", False),
    ],
)
def test_a_sighting_knows_the_topology_that_it_is(
    broker: Broker, state: State, kind: str, is_managed: bool
) -> None:
    mine = make_pair(broker)
    Topology.objects.update(state=state, kind=kind)
    snapshot = a_snapshot(WHOLE)
    (one,) = adopt.match_managed(broker, recognize(snapshot).found, snapshot)
    assert (one.managed == mine) is is_managed
    assert one.is_adoptable is not is_managed
