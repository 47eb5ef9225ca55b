"""Messages that RabbitMQ cannot route: who waits, what is stuck, and how long it is listed."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from analytics import observation
from analytics.minutes import tally
from analytics.models import Firehose, Probe, ScheduledMessage, ScheduledText
from analytics.models.scheduled_message import measure_lateness
from analytics.observation import MOST_RANGES, stuck_ranges
from analytics.scheduled import projection
from analytics.scheduled.queries import listing, texts
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.destinations import COUNTED_WITHIN, update_missing_bindings
from tests.analytics.builders import an_entry, an_exit, ms
from tests.builders import make_tapped
from tests.topology.builders import a_snapshot
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.models import Broker, MissingBinding, Role, State, Topology
from topology.models.grant import Grant
from topology.patterns.delay_levels.params import Params, delivery_name, level_name
from topology.patterns.delay_levels.pattern import delay_levels
from topology.snapshot import QueueNumbers, Snapshot

pytestmark = pytest.mark.both_databases

PARAMS = Params("own", "shop", 5)
LEVELS = delay_levels.definitions(PARAMS)
LOWEST = level_name(PARAMS, 0)
BOUND = Binding(delivery_name(PARAMS), "sales", "#.sales")
NOW = datetime.now(UTC)
LOOK = timedelta(seconds=5)


@pytest.fixture
def levels(broker: Broker) -> Topology:
    made = make_tapped(broker, delay_levels.KIND, PARAMS)
    made.state = State.APPLIED
    made.applied_at = NOW - timedelta(days=1)
    made.save()
    return made


def at(moment: datetime, *objects: Binding | Queue | Exchange, stuck: int = 0) -> Snapshot:
    """The levels and a queue of the destination at a moment; so many are stuck in the lowest."""
    numbers = {queue.name: QueueNumbers(messages=0, ready=0, unacked=0) for queue in LEVELS.queues}
    numbers[LOWEST] = QueueNumbers(messages=stuck, ready=0, unacked=0)
    there = LEVELS | Definitions.of([Queue("sales"), *objects])
    return replace(a_snapshot(there, numbers), taken_at=moment)


def wait(
    topology: Topology, *dues: float, destination: str = "sales", delay_ms: int = 60_000
) -> None:
    """List messages that are due so many seconds from now."""
    projection.project(
        topology,
        [
            an_entry(
                f"{destination} {due}",
                NOW + timedelta(seconds=due) - ms(delay_ms),
                destination=destination,
                requested_delay_ms=delay_ms,
            )
            for due in dues
        ],
    )


def listed(topology: Topology, now: datetime = NOW) -> list[str]:
    return [row.key for row in listing.waiting([topology.broker], now=now)]


def test_a_destination_without_a_binding_is_named_with_what_waits_for_it(levels: Topology) -> None:
    wait(levels, 10, 20)
    (row,) = update_missing_bindings(levels, at(NOW), None)
    assert (row.destination, row.since_at, row.waiting, row.stuck) == ("sales", NOW, 2, 0)
    assert row.sentence == (
        f"Destination “sales” has no binding since {NOW:%Y-%m-%d %H:%M:%S} UTC: "
        "2 messages wait for it."
    )
    assert update_missing_bindings(levels, at(NOW, BOUND), None) == [row]
    assert MissingBinding.objects.get().restored_at == NOW


def test_a_destination_with_a_binding_is_no_problem(levels: Topology) -> None:
    wait(levels, 10)
    assert update_missing_bindings(levels, at(NOW, BOUND), None) == []


def test_a_binding_that_leads_to_no_queue_is_a_problem_too(levels: Topology) -> None:
    wait(levels, 10, destination="endpoint")
    bound = Binding(delivery_name(PARAMS), "endpoint", "#.endpoint", False)
    snapshot = at(NOW, Exchange("endpoint", "fanout"), bound)
    (row,) = update_missing_bindings(levels, snapshot, None)
    assert (row.destination, row.is_bound) == ("endpoint", True)


def test_what_is_due_and_stuck_stays_in_the_list_until_the_broker_keeps_nothing(
    levels: Topology,
) -> None:
    wait(levels, 2, 4, 60)
    update_missing_bindings(levels, at(NOW), None)
    later = NOW + timedelta(seconds=30)
    assert listed(levels, later) == ["sales 2", "sales 4", "sales 60"]
    (row,) = update_missing_bindings(levels, at(later, stuck=2), at(later - LOOK, stuck=2))
    assert (row.stuck, row.waiting) == (2, 1)
    assert "2 messages are stuck, 1 more not due yet" in row.sentence
    scope = counts.scope_of([levels], later)
    assert scope.stuck_rows().count() == scope.rows(until_at=later).count() == 2
    assert scope.by_topology[levels.pk] == 3
    # Restored: what was due before stays until the broker keeps nothing any more.
    bound_at = later + LOOK
    (row,) = update_missing_bindings(levels, at(bound_at, BOUND, stuck=2), at(later, stuck=2))
    assert row.restored_at == bound_at
    assert "2 messages are still stuck" in row.sentence
    much_later = bound_at + timedelta(minutes=2)
    (row,) = update_missing_bindings(
        levels, at(much_later, BOUND, stuck=2), at(much_later - LOOK, BOUND, stuck=2)
    )
    assert listed(levels, much_later) == ["sales 2", "sales 4"]
    assert not update_missing_bindings(
        levels, at(much_later + LOOK, BOUND), at(much_later, BOUND, stuck=2)
    )
    assert listed(levels, much_later + LOOK) == []


def test_messages_that_were_delivered_before_the_binding_went_are_not_stuck(
    levels: Topology,
) -> None:
    wait(levels, -300, -200, -1, 60)
    (row,) = update_missing_bindings(levels, at(NOW, stuck=1), at(NOW - LOOK, stuck=1))
    assert (row.stuck, row.waiting) == (1, 1)
    assert listed(levels) == ["sales -1", "sales 60"]


def test_a_destination_for_which_nothing_waits_is_forgotten(levels: Topology) -> None:
    wait(levels, -300)
    assert update_missing_bindings(levels, at(NOW), at(NOW - LOOK)) == []


def test_a_binding_of_ours_is_missed_though_nothing_waits(levels: Topology) -> None:
    levels.own([BOUND.identity])
    (row,) = update_missing_bindings(levels, at(NOW), None)
    assert row.sentence.endswith("no message waits for it.")


def test_stuck_messages_that_are_not_listed_are_counted_without_a_name(levels: Topology) -> None:
    assert update_missing_bindings(levels, at(NOW, stuck=3), None) == []
    (row,) = update_missing_bindings(levels, at(NOW, stuck=3), at(NOW - LOOK, stuck=3))
    assert (row.destination, row.stuck, row.from_at) == ("", 3, None)
    assert row.sentence.startswith("At least 3 messages are stuck in the delay levels since")
    assert not update_missing_bindings(levels, at(NOW + LOOK), at(NOW, stuck=3))


def test_a_probe_that_a_level_keeps_is_no_stuck_message(levels: Topology) -> None:
    seen = at(NOW, stuck=2), at(NOW - LOOK, stuck=2)
    moments = {"created_at": NOW - 2 * LOOK, "sent_at": NOW - 2 * LOOK}
    Probe.objects.create(topology=levels, message_id="due", delay=LOOK, **moments)
    Probe.objects.create(topology=levels, message_id="waits", delay=3 * LOOK, **moments)
    (row,) = update_missing_bindings(levels, *seen)
    assert row.stuck == 1
    Probe.objects.update(arrived_at=NOW)
    (row,) = update_missing_bindings(levels, *seen)
    assert row.stuck == 2


def test_what_was_on_its_way_at_one_look_only_is_not_stuck(levels: Topology) -> None:
    assert update_missing_bindings(levels, at(NOW, stuck=3), at(NOW - LOOK)) == []


def test_a_level_that_stopped_keeps_what_is_for_others_too(levels: Topology) -> None:
    wait(levels, -300, -3, -1)
    seen = at(NOW, BOUND, stuck=34), at(NOW - LOOK, BOUND, stuck=34)
    (row,) = update_missing_bindings(levels, *seen)
    assert (row.destination, row.stuck) == ("", 34)
    assert listed(levels) == ["sales -3", "sales -1"]


def test_classic_levels_drop_and_list_nothing_as_stuck(broker: Broker) -> None:
    params = replace(PARAMS, queue_type="classic")
    made = make_tapped(broker, delay_levels.KIND, params)
    wait(made, -1, 10)
    there = a_snapshot(delay_levels.definitions(params) | Definitions.of([Queue("sales")]))
    (row,) = update_missing_bindings(made, replace(there, taken_at=NOW), None)
    assert "RabbitMQ drops messages for it, and 1 message waits for it." in row.sentence
    assert stuck_ranges() == ()


def test_very_many_destinations_are_one_range(levels: Topology) -> None:
    for number in range(MOST_RANGES + 1):
        MissingBinding.objects.create(
            topology=levels,
            destination=f"d{number}",
            since_at=NOW,
            from_at=NOW - timedelta(seconds=number),
        )
    (one,) = stuck_ranges([levels.pk])
    assert (one.destination, one.from_at) == ("", NOW - timedelta(seconds=MOST_RANGES))


@pytest.fixture
def stuck(levels: Topology) -> Topology:
    """Two messages are stuck, one for another destination was delivered, one waits."""
    wait(levels, -40, -30, 600)
    wait(levels, -35, destination="billing")
    MissingBinding.objects.create(
        topology=levels, destination="sales", since_at=NOW, from_at=NOW - ms(60_000), stuck=2
    )
    return levels


@pytest.fixture
def viewer(broker: Broker) -> Client:
    user = User.objects.create_user("vera")
    Grant.objects.create(user=user, broker=broker, role=Role.VIEWER)
    client = Client()
    client.force_login(user)
    return client


def test_the_list_the_filter_and_the_counts_have_them(stuck: Topology, viewer: Client) -> None:
    text = viewer.get(reverse("analytics:scheduled")).content.decode()
    assert text.count('<span class="state state-error">stuck</span>') == 2
    assert "Stuck <strong>2</strong>" in text
    assert "sales -40" in text
    assert "billing -35" not in text
    text = viewer.get(reverse("analytics:scheduled"), {"stuck": "1"}).content.decode()
    assert "sales -30" in text
    assert "sales 600" not in text
    text = viewer.get(reverse("analytics:scheduled"), {"overdue": "1"}).content.decode()


def test_a_search_finds_them_and_counts_them(stuck: Topology, viewer: Client) -> None:
    query = {"text": "sales", "stuck": "1"}
    assert viewer.get(reverse("analytics:scheduled"), query).context["listing"].matching == 2


def test_the_page_of_one_says_it_is_stuck_and_of_a_delivered_one_nothing_better(
    stuck: Topology, viewer: Client
) -> None:
    def page(key: str) -> str:
        row = ScheduledMessage.objects.get(key=key)
        address = reverse("analytics:scheduled_message", args=[row.pk])
        return viewer.get(address).content.decode()

    entered = {"entered_at": NOW - timedelta(minutes=50), "requested_delay": timedelta(seconds=20)}
    ScheduledMessage.objects.filter(key="sales -40").update(**entered)
    text = page("sales -40")
    assert "Stuck, due" in text
    path = text.partition("<h2>Path</h2>")[2].partition("</ol>")[0]
    assert '<li class="is-rejected">' in path
    assert '<span class="state state-error">Stuck</span>' in path
    assert "is-end" not in path.rpartition("is-rejected")[2]
    assert "no delivery: RabbitMQ cannot route the message" in path
    assert "</time>, delivery not observed" in page("billing -35")


def test_exports_and_the_command_tell_the_state(stuck: Topology, viewer: Client) -> None:
    answer = viewer.get(reverse("analytics:scheduled"), {"stuck": "1", "as": "csv"})
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert [(row["message_id"], row["state"]) for row in rows] == [
        ("sales -40", "stuck"),
        ("sales -30", "stuck"),
    ]
    out = io.StringIO()
    call_command("scheduled", "--json", "--stuck", stdout=out, stderr=io.StringIO())
    *messages, summary = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [message["state"] for message in messages] == ["stuck", "stuck"]
    assert (summary["stuck"], summary["matching"], summary["waiting"]) == (2, 2, 3)


def test_switching_the_firehose_on_does_not_write_down_that_they_left(stuck: Topology) -> None:
    assert projection.settle([stuck], NOW) == 1
    left = ScheduledMessage.objects.filter(left_at__isnull=False)
    assert [row.key for row in left] == ["billing -35"]


def test_with_the_firehose_they_stay_listed_until_their_exit_is_seen(stuck: Topology) -> None:
    firehose = Firehose.objects.create(broker=stuck.broker, switched_on_by="ada")
    Firehose.objects.filter(pk=firehose.pk).update(switched_on_at=NOW)
    assert observation.unobserved() == []
    assert listed(stuck) == ["sales -40", "sales -30", "sales 600"]
    late = NOW + timedelta(minutes=3)
    exit_ = an_exit("sales -40", late, destination="sales", requested_delay_ms=60_000)
    (trip,) = projection.project(stuck, [exit_])
    assert measure_lateness(trip) == timedelta(minutes=3, seconds=40)
    (minute,) = tally([exit_], [trip]).values()
    assert minute == {"left": 1, "late": 1}
    assert listed(stuck) == ["sales -30", "sales 600"]


def test_their_texts_stay_searchable(stuck: Topology) -> None:
    for row in ScheduledMessage.objects.filter(due_at__lt=NOW):
        ScheduledText.objects.create(message=row, text=row.key, check_at=NOW)
    texts.keep_up()
    left = set(ScheduledText.objects.values_list("text", flat=True))
    assert left == {"sales -40", "sales -30"}


def test_a_range_that_was_restored_ends_there(stuck: Topology) -> None:
    MissingBinding.objects.update(restored_at=NOW - timedelta(seconds=35))
    assert listed(stuck) == ["sales -40", "sales 600"]
    assert COUNTED_WITHIN > LOOK
