"""The lines and figures of Now: what comes first, what is unknown, when the page changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from analytics.models import (
    DayFigures,
    Minute,
    Probe,
    Recording,
    Run,
    Slo,
)
from analytics.scheduled import projection
from delayboard.models import (
    BackgroundTask,
    BatchState,
    CounterSample,
    DeadLetterQueue,
    ReplayBatch,
)
from delayboard.now.board import (
    SHARED_AGE,
    Overview,
    overview,
    share_overview,
    shared_overview,
)
from delayboard.now.counters import Counter, add_changes
from delayboard.now.problems import Link
from delayboard.now.system import TaskLine, describe_tasks, make_tasks_version
from tests.analytics import result_rows
from tests.analytics.builders import an_entry
from tests.builders import make_broker, make_pair
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import know
from topology import audit, snapshots
from topology.definitions import Queue
from topology.models import Broker, MissingBinding, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_queues import params as delay_queues_params

NBSP = "\u202f"


@pytest.fixture(autouse=True)
def known(broker: Broker) -> Iterator[None]:
    know(broker, Queue("dead"), dead=2000)
    BackgroundTask.objects.create(key="facts", name="Facts", beat_at=timezone.now())
    yield
    snapshots.forget(broker.pk)


def board(broker: Broker) -> Overview:
    return overview([broker], timezone.now(), timedelta(seconds=5))


def counter(broker: Broker, key: str) -> Counter:
    return next(one for one in board(broker).counters if one.key == key)


def applied(broker: Broker, name: str) -> Topology:
    made = make_pair(broker, name=name)
    made.state = State.APPLIED
    made.save()
    Recording.objects.create(topology=made, read_at=timezone.now() + timedelta(hours=1))
    return made


def test_trouble_comes_first_and_the_rest_stands_by_name(broker: Broker) -> None:
    quiet, late, stuck = (applied(broker, name) for name in ("a", "b", "c"))
    now = timezone.now()
    Minute.objects.create(topology=quiet, minute_at=now, entered=9, left=9)
    Minute.objects.create(topology=late, minute_at=now, left=40, late=1)
    MissingBinding.objects.create(topology=stuck, destination="sales", since_at=now, stuck=3)
    lines = board(broker).lines
    assert [(line.topology.name, line.state, line.mark) for line in lines] == [
        ("c", "Stuck", "failed"),
        ("b", "Late", "late"),
        ("a", "OK", "done"),
    ]
    assert (lines[1].flow.late, lines[2].flow.late) == ("2.5 %", "0 %")


def test_the_page_changes_with_its_problems_and_not_with_its_numbers(broker: Broker) -> None:
    pair = applied(broker, "orders")
    row = MissingBinding.objects.create(
        topology=pair, destination="sales", since_at=timezone.now(), stuck=3
    )
    before = board(broker)
    row.stuck = 4
    row.save()
    projection.project(pair, [an_entry(f"m{n}", timezone.now()) for n in range(7)])
    after = board(broker)
    assert "3 messages are stuck" in before.troubles[0].sentence
    assert "4 messages are stuck" in after.troubles[0].sentence
    assert [one.lines[0].waiting for one in (before, after)] == [0, 7]
    assert before.version != after.version
    audit.record(None, "parked messages listed", broker=broker)
    assert board(broker).version == after.version
    audit.record(None, "message published", broker=broker)
    assert board(broker).version != after.version
    row.delete()
    assert (after.state, board(broker).state) == ("error", "ok")


def test_the_page_changes_with_the_name_of_a_topology(broker: Broker) -> None:
    applied(broker, "orders")
    before = board(broker).version
    Topology.objects.update(name="sales")
    assert board(broker).version != before


@pytest.mark.parametrize(
    ("version", "state", "sentence"),
    [
        ("3.10.8", "running", ""),
        (
            "3.10.8",
            "down",
            "orders is not recorded: the node of the tap “delayboard.tap.orders” is down. Replace "
            "the tap or start the node.",
        ),
        (
            "4.0.5",
            "down",
            "Publishers of orders are refused although their messages arrive: the node of the tap "
            "“delayboard.tap.orders” is down. Replace the tap or start the node.",
        ),
        (
            "4.3.6",
            "minority",
            "Publishers of orders get no confirmation: most nodes of the tap "
            "“delayboard.tap.orders” are down. Start the nodes.",
        ),
    ],
)
def test_a_tap_without_its_nodes_is_a_problem(
    broker: Broker, version: str, state: str, sentence: str
) -> None:
    tap = applied(broker, "orders").tap_queue
    seen = know(broker, Queue(tap))
    numbers = {tap: replace(seen.numbers[tap], state=state)}
    known = snapshots._latest[broker.pk]
    newer = replace(seen, version=version, numbers=numbers)
    snapshots._latest[broker.pk] = replace(known, snapshot=newer)
    assert [one.sentence for one in board(broker).troubles] == ([sentence] if sentence else [])


def test_dead_letters_are_those_parked_and_those_in_marked_queues(broker: Broker) -> None:
    pair = applied(broker, "orders")
    parked(broker, a_message(b"1"), a_message(b"2"))
    assert counter(broker, "dead").number == 2
    DeadLetterQueue.objects.create(
        broker=broker, queue="dead", is_confirmed=True, decided_at=timezone.now()
    )
    assert counter(broker, "dead").text == f"2{NBSP}002"
    snapshots.forget(broker.pk)
    assert counter(broker, "dead").number is None
    assert pair.slug in board(broker).lines[0].key


def test_parked_messages_are_in_the_line_of_the_queue_where_they_failed(broker: Broker) -> None:
    applied(broker, "orders")
    waited = deaths_header(a_death("orders-retry", "expired"))
    parked(broker, a_message(b"1"), a_message(b"2", waited), queue="orders-given-up")
    parked(broker, a_message(b"3", {}), a_message(b"4", deaths_header(a_death("refunds"))))
    found = board(broker)
    assert (found.lines[0].dead, found.other_parked) == (2, 2)
    assert counter(broker, "dead").number == 4


def test_what_failed_in_a_queue_of_two_topologies_is_in_no_line(broker: Broker) -> None:
    one, other = applied(broker, "orders"), applied(broker, "refunds")
    waited = deaths_header(a_death("orders-retry", "expired"))
    parked(broker, a_message(b"1"), a_message(b"2", waited), queue="orders-given-up")
    Topology.objects.filter(pk=other.pk).update(params=one.params, name="orders")
    found = board(broker)
    assert [line.dead for line in found.lines] == [None, None]
    assert found.other_parked == 2
    elsewhere = make_broker(name="Another broker")
    Topology.objects.filter(pk=other.pk).update(broker=elsewhere)
    know(elsewhere)
    found = overview([broker, elsewhere], timezone.now(), timedelta(seconds=5))
    dead = {line.topology.pk: line.dead for line in found.lines}
    assert [dead[row.pk] for row in (one, other)] == [2, 0]
    assert found.other_parked == 0


def test_the_lateness_of_the_last_hour_leads_to_the_table_of_the_last_hour(broker: Broker) -> None:
    link = counter(broker, "lateness").link
    assert (link.url_name, link.fragment) == ("now", "topologies")


def test_nothing_parked_is_unknown_where_the_consumer_publishes_its_failures(
    broker: Broker,
) -> None:
    params = delay_queues_params.Params("webhooks", (timedelta(seconds=10),))
    row = create_topology(None, broker, "delay_queues", params)
    Topology.objects.update(state=State.APPLIED)
    parked(broker, a_message(b"1", {}))
    assert board(broker).lines[0].dead is None
    (delay_queue,) = (one.name for one in row.definitions.queues)
    parked(broker, a_message(b"2", deaths_header(a_death(delay_queue, "expired"))))
    assert board(broker).lines[0].dead == 1


def test_a_paused_replay_is_a_warning_with_its_page_and_does_not_run(broker: Broker) -> None:
    made = parked(broker, a_message(b"1"), a_message(b"2"))
    a_batch(broker, made[:1], BatchState.RUNNING)
    paused = a_batch(broker, made[1:], BatchState.PAUSED)
    assert counter(broker, "replays").number == 1
    (warning,) = board(broker).warnings
    assert warning.sentence == f"Replay {paused.pk} is paused. Resume or cancel it."
    assert warning.link is not None
    assert warning.link.arguments == (str(paused.pk),)
    ReplayBatch.objects.update(died=1)
    (warning,) = board(broker).warnings
    assert warning.sentence.endswith("Correct the cause, then resume or cancel it.")
    assert warning.link is not None
    assert warning.link.fragment == "failures"


def test_a_used_up_error_budget_and_unsent_reports_are_warnings(broker: Broker) -> None:
    pair = applied(broker, "orders")
    target = Slo.objects.create(topology=pair, percent=50, within_ms=10)
    day = timezone.now().date() - timedelta(days=1)
    run = Run.objects.create(day=day, state="done", finished_at=timezone.now())
    result_rows.days([day], [{"broker": broker.slug, "topology": pair.slug, "queue": ""}])
    assert board(broker).warnings == ()
    target.percent = 99.9
    target.save()
    (warning,) = board(broker).warnings
    assert warning.sentence.startswith("orders: the error budget of 28 days is used up.")
    assert board(broker).lines[0].state == "Target missed"
    # A nightly run replaces the figures.
    DayFigures.objects.all().delete()
    Run.objects.filter(pk=run.pk).update(finished_at=timezone.now())
    assert board(broker).warnings == ()


def test_a_failed_nightly_run_of_the_last_week_is_a_warning(broker: Broker) -> None:
    today = timezone.now().date()
    for back, state in ((2, "failed"), (3, "done"), (30, "failed")):
        Run.objects.create(day=today - timedelta(days=back), state=state)
    (warning,) = board(broker).warnings
    day = today - timedelta(days=2)
    assert warning.sentence == (
        f"The nightly run of {day} failed, so its report has no new figures."
    )
    assert warning.link is not None
    assert warning.link.query == {"from": str(day), "to": str(day)}


def test_an_overdue_probe_is_a_problem_until_it_arrives_or_is_given_up(broker: Broker) -> None:
    pair = applied(broker, "orders")
    Topology.objects.filter(pk=pair.pk).update(probing="on")
    at = timezone.now() - timedelta(minutes=5)
    moments = {"created_at": at, "sent_at": at, "delay": timedelta(seconds=5)}
    for name in ("one", "two"):
        Probe.objects.create(topology=pair, message_id=name, **moments, overdue_at=at)
    assert board(broker).troubles == ()
    (problem,) = board(broker).warnings
    sentence = "orders: 2 probes are overdue by a minute or more. Real messages may be too."
    assert problem.sentence == sentence
    assert problem.link is not None
    assert (problem.link.arguments, problem.link.fragment) == ((pair.slug,), "probes")
    assert problem.link.url_name == "topology:topology_settings"
    assert board(broker).lines[0].state == "Probe overdue"
    Probe.objects.filter(message_id="one").update(arrived_at=timezone.now())
    Probe.objects.filter(message_id="two").update(abandoned_at=timezone.now())
    assert board(broker).warnings == ()


def test_findings_are_unknown_until_the_worker_has_checked(broker: Broker) -> None:
    assert (counter(broker, "findings").number, counter(broker, "findings").note) == (
        None,
        "not checked yet",
    )
    broker.findings_checked_at = timezone.now()
    broker.save()
    assert counter(broker, "findings").number == 0


def test_background_tasks_are_summed_up_and_lined_up() -> None:
    task = BackgroundTask.objects.get()
    line = TaskLine(task)
    assert (line.status, line.mark) == ("Running", "done")
    assert describe_tasks([task]) == "1 background task is running."
    failing = BackgroundTask(key="a", name="A", beat_at=timezone.now(), last_error="No.")
    assert (TaskLine(failing).status, TaskLine(failing).details) == ("Failing", "")
    assert describe_tasks([task, failing]) == "1 of 2 background tasks needs attention."
    assert describe_tasks([]) == "The worker is not running."
    assert make_tasks_version([line]) == make_tasks_version([TaskLine(task)])
    assert make_tasks_version([line]) != make_tasks_version([line, TaskLine(failing)])


def test_a_page_shows_what_the_feed_read_when_it_has_the_version_that_the_page_was_told(
    broker: Broker,
) -> None:
    at = timezone.now()
    reported = share_overview([broker], at)
    assert shared_overview([broker], reported.version, at) is reported
    assert shared_overview([broker], "another", at) is None
    assert shared_overview([broker], reported.version, at + SHARED_AGE) is None
    assert shared_overview([], reported.version, at) is None
    audit.record(None, "replay started", broker=broker)
    newer = share_overview([broker], at)
    assert newer.version != reported.version
    assert shared_overview([broker], reported.version, at) is newer


def test_counters_have_their_change_in_the_last_hour(broker: Broker) -> None:
    def notes() -> dict[str, str]:
        return {one.key: one.note for one in board(broker).counters}

    def was(minutes: int, **numbers: int) -> None:
        at = timezone.now() - timedelta(minutes=minutes)
        CounterSample.objects.create(broker=broker, at=at, numbers=numbers)

    DeadLetterQueue.objects.create(
        broker=broker,
        queue="dead",
        is_confirmed=True,
        decided_at=timezone.now() - timedelta(hours=2),
    )
    assert set(notes().values()) == {"", "nothing measured", "not checked yet"}
    was(20, dead=1999, stuck=3)
    found = notes()
    assert (found["dead"], found["stuck"], found["due_within_hour"]) == (
        "+1 in 20 min",
        "−3 in 20 min",
        "",
    )
    was(65, dead=2000, stuck=3)
    was(61, dead=2010, due_within_hour=2, overdue=4, replays=1, findings=1)
    found = notes()
    assert (found["dead"], found["due_within_hour"], found["overdue"]) == (
        "−10 in 1 h",
        "−2 in 1 h",
        "−4 in 1 h",
    )
    assert (found["replays"], found["stuck"]) == ("−1 in 1 h", "−3 in 1 h")
    assert found["findings"] == "not checked yet"


def test_a_change_begins_with_the_first_value_that_was_measured(broker: Broker) -> None:
    now = timezone.now()

    def note(counter: Counter) -> str:
        return add_changes([counter], [broker], now)[0].note

    for minutes, numbers in (
        *((19, {"dead": 0, "stuck": 0}), (15, {"dead": 0})),
        *((9, {"dead": 50, "findings": 4}), (5, {"dead": 51, "findings": 4})),
    ):
        at = now - timedelta(minutes=minutes)
        CounterSample.objects.create(broker=broker, at=at, numbers=numbers)
    dead = Counter("dead", "dead letters", 50, Link("", "now"))
    assert note(dead) == "+50 in 19 min"
    # Before the queue was confirmed, its dead letters were not counted.
    confirmed = replace(dead, counted_from=now - timedelta(minutes=10))
    assert (note(confirmed), note(replace(confirmed, number=52))) == ("", "+2 in 9 min")
    assert note(replace(dead, counted_from=now - timedelta(minutes=2))) == ""
    # Nothing had checked the broker when the first sample was taken.
    findings = Counter("findings", "findings", 4, Link("", "now"))
    assert (note(findings), note(replace(findings, number=5))) == ("", "+1 in 9 min")


def test_a_queue_that_is_confirmed_now_adds_no_change(broker: Broker) -> None:
    know(broker, Queue("dead"), dead=50)
    at = timezone.now() - timedelta(minutes=19)
    CounterSample.objects.create(broker=broker, at=at, numbers={"dead": 0})
    DeadLetterQueue.objects.create(
        broker=broker, queue="dead", is_confirmed=True, decided_at=timezone.now()
    )
    dead = next(one for one in board(broker).counters if one.key == "dead")
    assert (dead.number, dead.note) == (50, "")


def test_a_change_is_that_of_all_brokers(broker: Broker) -> None:
    at, other = timezone.now(), make_broker(name="other")
    figures = [Counter("stuck", "stuck", 9, Link("", "now"))]
    for one, minutes, number in ((broker, 90, 1), (broker, 40, 2), (other, 35, 3)):
        CounterSample.objects.create(
            broker=one, at=at - timedelta(minutes=minutes), numbers={"stuck": number}
        )
    assert [one.note for one in add_changes(figures, [broker, other], at)] == ["+4 in 35 min"]
    # While the worker was down, nothing was sampled.
    CounterSample.objects.filter(broker=broker, at__gt=at - timedelta(hours=1)).delete()
    assert [one.note for one in add_changes(figures, [broker, other], at)] == [""]
