"""`manage.py scheduled` with an action: what it asks for, refuses and prints."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from analytics.models import ScheduledMessage
from delayboard.changes import check
from delayboard.changes import request as requesting
from delayboard.changes.check import ChangeVerdict, Point
from delayboard.changes.request import request
from delayboard.models import ChangeKind, ChangeState, Interception, ScheduledChange
from tests import commands
from tests.builders import make_broker, make_user
from topology.definitions import Binding
from topology.models import AuditEntry, Role, State, Topology, Work
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import delay_levels

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker in which every destination has one binding."""
    point = Point((Binding("a.delay-delivery", "work", "#.work"),), "classic")
    monkeypatch.setattr(check._Checker, "_point", lambda self, topology, destination: point)


@pytest.fixture
def topology() -> Topology:
    row = create_topology(None, make_broker(), delay_levels.KIND, levels.Params("own", "a", 12))
    Topology.objects.filter(pk=row.pk).update(state=State.APPLIED)
    row.refresh_from_db()
    return row


def waiting(topology: Topology, key: str, due: timedelta, content: str = "c") -> ScheduledMessage:
    now = datetime.now(UTC)
    return ScheduledMessage.objects.create(
        broker=topology.broker,
        topology=topology,
        key=key,
        message_id=key,
        content_id=content,
        attempt=1,
        requested_delay=due,
        entered_at=now,
        due_at=now + due,
        destination="work",
    )


def run(*words: str) -> str:
    out = StringIO()
    call_command("scheduled", *words, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_a_dry_run_names_the_messages_their_times_and_what_else_passes(topology: Topology) -> None:
    for number in range(3):
        waiting(topology, f"m{number}", timedelta(minutes=5, seconds=number))
    assert "m1" not in run("--id", "m0")
    text = run("cancel", "--id", "m0", "--id", "m2", "--dry-run")
    assert "m0 for work: cancel takes effect at " in text
    assert "Delayboard intercepts the queue “work” from " in text
    assert "The worker forwards 1 known message and all other messages that RabbitMQ routes" in text
    assert text.endswith("2 of 2 changes would be requested.\n")
    assert not ScheduledChange.objects.exists()


def test_a_message_is_named_as_json_prints_it_and_by_the_id_of_a_celery_task(
    topology: Topology,
) -> None:
    # Celery sets no message id: the id of the task is the correlation id.
    task = "3f3a9d4e-0c1b-4f57-9d0c-6a5b8f0f6a11"
    waiting(topology, "c1", timedelta(minutes=5))
    ScheduledMessage.objects.update(message_id="", correlation_id=task)
    waiting(topology, "m1", timedelta(minutes=6))
    listed = json.loads(run("--id", task, "--json").splitlines()[0])
    assert (listed["correlation_id"], listed["content_id"]) == (task, "c")
    for name in (task, str(listed["id"]), "c1"):
        text = run("cancel", "--id", name, "--dry-run")
        assert text.startswith("c1 for work: cancel takes effect at ")
        assert text.endswith("1 of 1 changes would be requested.\n")
    run("cancel", "--id", task)
    assert "cancel c1 for work, due " in run("changes", "--id", task)
    assert run("changes", "--id", "another task") == ""


def test_some_changes_end_with_another_code_than_all_or_none(topology: Topology) -> None:
    waiting(topology, "soon", timedelta(seconds=1))
    waiting(topology, "m1", timedelta(minutes=6))
    given = ("scheduled", "cancel", "--dry-run")
    assert commands.run(*given, "--id", "m1").code == 0
    assert commands.run(*given, "--id", "soon").code == 1
    both = commands.run(*given, "--id", "soon", "--id", "m1")
    assert both.code == 3
    assert both.out.endswith("1 of 2 changes would be requested.\n")


def test_a_name_that_means_two_messages_in_two_ways_changes_nothing(topology: Topology) -> None:
    first = waiting(topology, "m1", timedelta(minutes=5))
    waiting(topology, str(first.pk), timedelta(minutes=6))
    with pytest.raises(CommandError, match="is the number of one message and the id of another"):
        run("cancel", "--id", str(first.pk))
    assert not ScheduledChange.objects.exists()


def test_a_dry_run_says_when_other_messages_pass_the_worker_by(topology: Topology) -> None:
    for number in range(2):
        row = waiting(topology, f"m{number}", timedelta(minutes=5))
        row.headers_json = f'{{"NServiceBus.MessageId":"m{number}"}}'
        row.save()
    past = "RabbitMQ routes only the changed messages to the worker"
    assert past in run("cancel", "--id", "m0", "--dry-run")
    # Of one that is changed at the same time, nothing but the queue is known.
    waiting(topology, "m2", timedelta(minutes=5))
    run("cancel", "--id", "m2")
    assert past not in run("cancel", "--id", "m0", "--dry-run")


def test_a_queue_that_programs_bind_again_is_changed_with_the_risk_stated_and_confirmed(
    topology: Topology,
) -> None:
    params = delay_levels.store(levels.Params("nsb-v2"))
    Topology.objects.filter(pk=topology.pk).update(params=params)
    row = waiting(topology, "m0", timedelta(minutes=5))
    row.headers_json = '{"NServiceBus.MessageId":"m0"}'
    row.save()
    risk = (
        "If an NServiceBus endpoint starts or sends a delayed message to this queue in these 12s, "
        "it binds “work” again. RabbitMQ then delivers changed messages unchanged too, until"
    )
    assert risk in run("cancel", "--id", "m0", "--dry-run")
    with pytest.raises(CommandError, match=r"needs a confirmation.* --dry-run shows why"):
        run("cancel", "--id", "m0")
    assert not ScheduledChange.objects.exists()
    # Of one without such a header, others pass the worker too.
    waiting(topology, "m1", timedelta(minutes=5))
    text = run("cancel", "--id", "m1", "--confirm", topology.broker.name)
    assert "RabbitMQ then delivers messages twice, until" in text
    assert ScheduledChange.objects.count() == 1


def test_a_dry_run_counts_messages_with_the_same_delay_where_the_routing_key_has_it(
    topology: Topology,
) -> None:
    for number, key in enumerate(("1.work", "1.work", "2.work")):
        row = waiting(topology, f"m{number}", timedelta(minutes=5))
        row.routing_key = key
        row.save()
    text = run("cancel", "--id", "m0", "--dry-run")
    assert "RabbitMQ routes only messages with the delays of the changed messages" in text
    assert "The worker forwards 1 known message and all other messages with these delays" in text


def test_a_change_is_requested_listed_undone_and_in_the_audit_log(topology: Topology) -> None:
    waiting(topology, "m0", timedelta(hours=1))
    user = make_user("olga", Role.OPERATOR, topology.broker)
    run("reschedule", "--id", "m0", "--to", "+1h5m", "--user", "olga")
    row = ScheduledChange.objects.get()
    assert (row.state, row.requested_by, row.is_copied) == (ChangeState.PENDING, user, False)
    begins_at = Work.objects.get().not_before_at
    assert begins_at is not None
    assert timedelta(seconds=9) < row.due_at - begins_at < timedelta(seconds=11)
    assert f"{row.pk}  reschedule m0 for work, due " in run("changes")
    run("undo", "--id", str(row.pk))
    row.refresh_from_db()
    assert row.state == ChangeState.UNDONE
    with pytest.raises(CommandError, match="0 of 1 changes undone"):
        run("undo", "--id", str(row.pk))
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"reschedule requested", "change undone"} <= actions


def change_before(name: str, row: ScheduledMessage) -> None:
    """What somebody else does while the broker is asked."""
    topology = row.topology
    assert topology is not None
    match name:
        case "requested":
            request(None, [row], ChangeKind.CANCEL)
        case "left":
            ScheduledMessage.objects.update(left_at=datetime.now(UTC))
        case "deleted":
            Topology.objects.filter(pk=topology.pk).update(state=State.DELETED)


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [
        ("requested", "Another change of this message is already requested"),
        ("left", "The message has left its delay"),
        ("deleted", "The topology of this message is not applied"),
    ],
)
def test_what_happens_while_the_broker_is_asked_is_checked_before_a_change_is_stored(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, meanwhile: str, why: str
) -> None:
    row = waiting(topology, "m0", timedelta(hours=1))
    whole = check.check

    def slow(*given: Any) -> list[ChangeVerdict]:
        verdicts = whole(*given)
        monkeypatch.setattr(requesting, "check", whole)
        change_before(meanwhile, row)
        return verdicts

    monkeypatch.setattr(requesting, "check", slow)
    (verdict,) = request(None, [row], ChangeKind.CANCEL)
    assert verdict.problem.startswith(why)
    assert ScheduledChange.objects.count() == (meanwhile == "requested")


def test_two_requests_for_one_binding_share_an_interception(topology: Topology) -> None:
    waiting(topology, "m0", timedelta(hours=1))
    waiting(topology, "m1", timedelta(minutes=1))
    run("cancel", "--id", "m0")
    run("cancel", "--id", "m1")
    interception = Interception.objects.get()
    first = interception.changes.order_by("due_at").first()
    assert first is not None
    assert interception.work.not_before_at == first.due_at - timedelta(seconds=10)
    with pytest.raises(CommandError, match="No message can be changed"):
        run("cancel", "--id", "m0")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("cancel",), "Select messages with --id, or use --all"),
        (("cancel", "--id", "m0", "--all"), "Select messages with --id, or use --all"),
        (("cancel", "--id", "nobody"), "No waiting message that matches has the id “nobody”"),
        (("reschedule", "--id", "m0"), "reschedule needs --to"),
        (("cancel", "--id", "m0", "--to", "+1h"), "The action cancel does not accept --to"),
        (("reschedule", "--id", "m0", "--to", "soon"), "“soon” is not a time"),
        (("cancel", "--id", "m0", "--user", "vera"), "does not have the role operator"),
        (("undo",), "Select changes with --id"),
        (("undo", "--id", "7"), "No change that matches has the id “7”"),
        (("deliver-now", "--id", "m0"), "No message can be changed"),
        (("cancel", "--all", "--limit", "0"), "--limit needs a number from 1 on"),
        (("reschedule", "--id", "m0", "--to", "+3"), "“\\+3” is not a time"),
        (("cancel", "--id", ""), "--id is empty"),
        (("undo", "--id", " "), "--id is empty"),
        (("undo", "--all", "--text", "m"), "The action undo does not accept --text"),
        (("changes", "--dry-run"), "The action changes does not accept --dry-run"),
        (("list", "--all"), "The action list does not accept --all"),
        (("undo", "--all", "--json"), "The action undo does not accept --json"),
        (("changes", "--overdue"), "The action changes does not accept --overdue"),
    ],
)
def test_what_is_not_said_clearly_or_not_permitted_changes_nothing(
    topology: Topology, words: tuple[str, ...], why: str
) -> None:
    waiting(topology, "m0", timedelta(hours=1))
    make_user("vera", Role.VIEWER, topology.broker)
    with pytest.raises(CommandError, match=why):
        run(*words)
    assert not ScheduledChange.objects.exists()


def test_all_changes_that_can_be_undone_are_undone_at_once(topology: Topology) -> None:
    for number in range(3):
        waiting(topology, f"m{number}", timedelta(hours=1))
    run("cancel", "--all")
    run("undo", "--id", str(ScheduledChange.objects.get(key="m0").pk))
    text = run("undo", "--all")
    *lines, total = text.splitlines()
    assert [line.partition("  ")[2] for line in lines] == [
        f"cancel m{number} for work: undone." for number in (1, 2)
    ]
    assert total == "2 of 2 changes undone."
    assert set(ScheduledChange.objects.values_list("state", flat=True)) == {"undone"}
    with pytest.raises(CommandError, match="No change can be undone"):
        run("undo", "--all")


def test_changes_are_listed_and_undone_by_topology_destination_due_time_and_number(
    topology: Topology,
) -> None:
    for number in range(3):
        waiting(topology, f"m{number}", timedelta(hours=1 + number))
    run("cancel", "--all")

    def listed(*words: str) -> list[str]:
        return [json.loads(line)["message"] for line in run("changes", "--json", *words).split()]

    assert listed() == ["m2", "m1", "m0"]
    assert listed("--limit", "1") == ["m2"]
    assert listed("--topology", topology.slug, "--destination", "work") == ["m2", "m1", "m0"]
    assert listed("--destination", "nowhere") == []
    assert listed("--from", "+90m", "--until", "+150m") == ["m1"]
    assert listed("--id", "m1") == ["m1"]
    assert listed("--id", str(ScheduledChange.objects.get(key="m2").pk), "--id", "x") == ["m2"]
    assert "2 of 2 changes would be undone" in run("undo", "--all", "--limit", "2", "--dry-run")
    assert ScheduledChange.objects.filter(state="pending").count() == 3
    with pytest.raises(CommandError, match="No change can be undone"):
        run("undo", "--all", "--destination", "nowhere")
    assert "cancel m0 for work: undone" in run("undo", "--all", "--until", "+90m")
    states = dict(ScheduledChange.objects.values_list("key", "state"))
    assert states == {"m0": "undone", "m1": "pending", "m2": "pending"}


def test_a_production_broker_asks_for_its_name(topology: Topology) -> None:
    waiting(topology, "m0", timedelta(hours=1))
    broker = topology.broker
    type(broker).objects.filter(pk=broker.pk).update(is_production=True)
    with pytest.raises(CommandError, match="Nothing was changed"):
        run("cancel", "--id", "m0")
    run("cancel", "--id", "m0", "--confirm", broker.name)
    assert ScheduledChange.objects.exists()


@pytest.mark.parametrize(
    ("key", "due", "to", "why"),
    [
        ("m0", timedelta(seconds=1), None, "It is too late for a change"),
        ("m0", timedelta(hours=1), "-1h", "The new due time is in the past"),
        ("m0", timedelta(hours=1), "+3h", "The longest delay of this topology is"),
        ("twin", timedelta(hours=1), None, "have the same id and content"),
    ],
)
def test_each_message_says_why_it_cannot_be_changed(
    topology: Topology, key: str, due: timedelta, to: str | None, why: str
) -> None:
    row = waiting(topology, key, due)
    if key == "twin":
        waiting(topology, key, due)
    now, new_due_at = datetime.now(UTC), None
    if to is not None:
        new_due_at = now + {"-1h": -timedelta(hours=1), "+3h": timedelta(hours=3)}[to]
    kind = ChangeKind.CANCEL if to is None else ChangeKind.RESCHEDULE
    (verdict,) = check.check([row], kind, now, new_due_at)
    assert why in verdict.problem


def test_of_messages_that_nothing_tells_apart_all_can_be_changed(topology: Topology) -> None:
    for _ in range(2):
        waiting(topology, "twin", timedelta(hours=1))
    assert run("cancel", "--all", "--dry-run").endswith("2 of 2 changes would be requested.\n")
