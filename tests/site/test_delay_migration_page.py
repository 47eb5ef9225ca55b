"""The page of a migration of waiting messages: targets, roles, and refusals in a sentence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from analytics.models import Firehose, Recording, ScheduledMessage
from delayboard.delay_migration import check
from delayboard.delay_migration import migrate as migrations
from delayboard.delay_migration.check import QUIET, find_publishers, list_steps
from delayboard.models import DelayMigration, MovedMessage
from delayboard.now.problems import find_paused_migrations
from tests.builders import make_broker, make_pair
from tests.site.page_setup import signed_in
from tests.site.test_scheduled_changes_pages import NOW, row
from topology import work
from topology.models import Role, State, Topology, Work, WorkState
from topology.models.topology import Probing
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delayed_exchange.params import Params as DelayedExchange
from topology.patterns.delayed_exchange.pattern import delayed_exchange
from topology.patterns.hold_queues.pattern import hold_queues

__all__ = ("row",)
pytestmark = pytest.mark.django_db


@pytest.fixture
def source() -> Topology:
    topology = create_topology(None, make_broker(), delay_levels.KIND, levels.Params("own", "a"))
    Topology.objects.update(state=State.APPLIED)
    return topology


def test_without_a_target_the_page_says_what_to_create(source: Topology) -> None:
    client = signed_in(Role.OPERATOR)
    page = client.get(reverse("migrate_delays", args=[source.slug])).content.decode()
    assert "A target is an applied topology of delay levels. Create one first." in page


def test_only_operators_see_it_and_only_levels_are_targets(source: Topology) -> None:
    address = reverse("migrate_delays", args=[source.slug])
    assert signed_in(Role.VIEWER).get(address).status_code == 403
    assert signed_in(Role.OPERATOR).get(address, {"target": source.slug}).status_code == 404


def test_an_interrupted_migration_and_a_broker_that_is_away_are_shown(source: Topology) -> None:
    target = create_topology(None, source.broker, delay_levels.KIND, levels.Params("own", "b"))
    Topology.objects.update(state=State.APPLIED)
    own = work.create("migrate", source.pk, broker=source.broker, user=None)
    DelayMigration.objects.create(source=source, target=target, work=own, moved=234, doubled=5)
    address = reverse("migrate_delays", args=[source.slug])
    page = signed_in(Role.OPERATOR).get(address, {"target": target.slug}).content.decode()
    assert "waiting" in page
    assert "The worker is not running" in page
    assert "234" in page
    assert 'role="alert"' in page


def test_publishers_are_unknown_where_nobody_records_what_enters(source: Topology) -> None:
    """Neither an absent message nor an old one says that they ended."""
    assert "no recorder reads the tap" in find_publishers(source, NOW).known
    holds = create_topology(None, source.broker, hold_queues.KIND, hold_queues.EXAMPLE)
    found = find_publishers(holds, NOW)
    assert (found.state, "Enable the firehose" in found.known) == ("unknown", True)
    Firehose.objects.create(broker=source.broker, read_at=NOW)
    assert find_publishers(holds, NOW).state == "done"


def request_all(source: Topology, target: Topology) -> None:
    for topology in (source, target):
        topology.refresh_from_db()
    migrations.request(None, source, target)


def test_a_viewer_and_a_role_on_one_broker_only_request_nothing(source: Topology) -> None:
    other = make_broker(name="Other")
    target = create_topology(None, other, delay_levels.KIND, levels.Params("own", "b"))
    Topology.objects.update(state=State.APPLIED)
    form = {"target": target.slug, "confirm_broker": source.broker.name}
    names = ("delay_migration_request", "delay_migration_pause", "delay_migration_continue")
    for name in names:
        address = reverse(name, args=[source.slug])
        assert signed_in(Role.VIEWER).post(address, form).status_code == 403
        assert signed_in(Role.OPERATOR).get(address).status_code == 405
    # Of one who operates the source only, the target is hidden.
    own = signed_in(Role.OPERATOR, source.broker)
    assert own.post(reverse(names[0], args=[source.slug]), form).status_code == 404
    for name in names[1:]:
        page = own.post(reverse(name, args=[source.slug]), follow=True).content.decode()
        assert "No migration of this topology is open." in page
    assert not DelayMigration.objects.exists()
    request_all(source, target)
    for name in names[1:]:
        assert own.post(reverse(name, args=[source.slug])).status_code == 404
    assert not DelayMigration.objects.get().is_paused


def test_a_second_target_waits_for_the_end_of_the_first_migration(source: Topology) -> None:
    first, second = (
        create_topology(None, source.broker, delay_levels.KIND, levels.Params("own", name))
        for name in "bc"
    )
    Topology.objects.update(state=State.APPLIED)
    request_all(source, first)
    client, address = signed_in(Role.OPERATOR), reverse("migrate_delays", args=[source.slug])
    form = {"target": second.slug, "confirm_broker": source.broker.name}
    request = reverse("delay_migration_request", args=[source.slug])
    assert "is not finished" in client.post(request, form, follow=True).content.decode()
    pause = reverse("delay_migration_pause", args=[source.slug])
    assert "The migration is paused." in client.post(pause, follow=True).content.decode()
    assert "none is running" in client.post(pause, follow=True).content.decode()
    page = client.get(address).content.decode()
    assert "Resume migration" in page
    assert "Request migration" not in page


@pytest.mark.parametrize("probing", [Probing.ON, Probing.ENDING])
def test_probes_of_the_source_are_disabled_first(source: Topology, probing: Probing) -> None:
    """Moved, they would arrive nowhere; left, they would pause the migration."""
    target = create_topology(None, source.broker, delay_levels.KIND, levels.Params("own", "b"))
    Topology.objects.update(state=State.APPLIED)
    Topology.objects.filter(pk=source.pk).update(probing=probing)
    with pytest.raises(Refusal, match="Disable probes"):
        request_all(source, target)
    Topology.objects.update(probing=Probing.OFF)
    request_all(source, target)


@pytest.mark.parametrize("leaves", ["its target is deleted", "it is paused and moved nothing"])
def test_a_migration_that_cannot_end_is_replaced(source: Topology, leaves: str) -> None:
    first, second = (
        create_topology(None, source.broker, delay_levels.KIND, levels.Params("own", name))
        for name in "bc"
    )
    Topology.objects.update(state=State.APPLIED)
    request_all(source, first)
    client, address = signed_in(Role.OPERATOR), reverse("migrate_delays", args=[source.slug])
    if leaves == "its target is deleted":
        Topology.objects.filter(pk=first.pk).update(state=State.DELETED)
    pause = reverse("delay_migration_pause", args=[source.slug])
    page = client.post(pause, follow=True)
    assert page.status_code == 200
    assert "Resume migration" in page.content.decode()
    assert "Resume migration" in client.get(address).content.decode()
    request_all(source, second)
    states = DelayMigration.objects.order_by("pk").values_list("target", "work__state")
    assert list(states) == [(first.pk, WorkState.CANCELLED), (second.pk, WorkState.WAITING)]


def test_another_target_marks_what_the_first_may_have(source: Topology) -> None:
    first, second = (
        create_topology(None, source.broker, delay_levels.KIND, levels.Params("own", name))
        for name in "bc"
    )
    Topology.objects.update(state=State.APPLIED)
    request_all(source, first)
    MovedMessage.objects.create(migration=DelayMigration.objects.get(), key="m")
    with pytest.raises(Refusal, match="is not finished"):
        request_all(source, second)
    migrations.pause(None, source)
    request_all(source, second)
    assert MovedMessage.objects.get().migration.target == second


def test_a_paused_migration_is_a_warning_and_can_be_cancelled(source: Topology) -> None:
    target = create_topology(None, source.broker, delay_levels.KIND, levels.Params("own", "b"))
    Topology.objects.update(state=State.APPLIED)
    request_all(source, target)
    client, cancel = signed_in(Role.OPERATOR), reverse("delay_migration_cancel", args=[source.slug])
    assert "wait until the worker has stopped" in client.post(cancel, follow=True).content.decode()
    assert list(find_paused_migrations([source.broker])) == []
    # A worker has it for as long as its lease lasts.
    own = DelayMigration.objects.get().work
    assert work.claim_this(own, "worker")
    migrations.pause(None, source)
    assert "wait until the worker has stopped" in client.post(cancel, follow=True).content.decode()
    Work.objects.update(leased_until_at=datetime.now(UTC) - timedelta(seconds=1))
    (problem,) = find_paused_migrations([source.broker])
    assert problem.sentence.endswith("is paused. Resume or cancel it.")
    assert "The migration is cancelled." in client.post(cancel, follow=True).content.decode()
    assert list(find_paused_migrations([source.broker])) == []
    assert DelayMigration.objects.get().work.state == WorkState.CANCELLED


def test_messages_that_the_target_cannot_delay_so_long_are_named(source: Topology) -> None:
    target = create_topology(None, source.broker, delay_levels.KIND, levels.Params("own", "b", 4))
    assert check.describe_too_long(target, timedelta(seconds=15)) == ""
    assert "The longest delay of “" in check.describe_too_long(target, timedelta(seconds=16))


def test_only_levels_and_hold_queues_can_be_a_source(source: Topology) -> None:
    pair = make_pair(source.broker)
    with pytest.raises(Refusal, match="Only messages of delay levels, hold queues and"):
        request_all(pair, source)


def test_a_worker_finds_a_free_migration_behind_ten_that_wait(source: Topology) -> None:
    target = create_topology(None, source.broker, delay_levels.KIND, levels.Params("own", "b"))
    for number in range(11):
        own = work.create("migrate", source.pk, broker=source.broker, user=None)
        if number < 10:
            Work.objects.filter(pk=own.pk).update(not_before_at=timezone.now() + QUIET)
        DelayMigration.objects.create(source=source, target=target, work=own)
    claimed = work.claim((migrations.KIND,), "worker")
    assert claimed is not None
    assert claimed.pk == own.pk
    assert work.claim((migrations.KIND,), "worker") is None


class Plugin:
    """A broker that reports so many delayed messages."""

    delayed: int | None = 3

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Plugin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def exchanges(self) -> list[dict[str, object]]:
        return [{"name": "later", "messages_delayed": Plugin.delayed}]


def test_of_the_plugin_the_steps_wait_until_it_has_delivered_its_messages(
    source: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reaches its messages, so nothing can be requested."""
    target, broker = source, source.broker
    params = DelayedExchange("later", "direct", (("work", "work"),))
    plugin = create_topology(None, broker, delayed_exchange.KIND, params)
    Topology.objects.update(state=State.APPLIED)
    monkeypatch.setattr(check, "Management", Plugin)
    monkeypatch.setattr(check, "Destinations", lambda topology: None)
    client, address = signed_in(Role.OPERATOR), reverse("migrate_delays", args=[plugin.slug])
    for delayed, words in (
        (3, "3 messages wait"),
        (0, "0 messages wait"),
        (None, "does not report"),
    ):
        monkeypatch.setattr(Plugin, "delayed", delayed)
        page = client.get(address, {"target": target.slug}).content.decode()
        assert words in page
        assert "Wait until the source has delivered its messages." in page
        assert "Request migration" not in page
    with pytest.raises(Refusal, match="RabbitMQ cannot list the messages of the plugin"):
        request_all(plugin, target)
    topology = reverse("topology:topology", args=[plugin.slug])
    assert address in client.get(topology).content.decode()


def test_publishers_are_done_when_nothing_entered_for_ten_minutes(row: ScheduledMessage) -> None:
    own, later = Topology.objects.get(), NOW + 2 * QUIET
    found = []
    for problems, waiting, now in (([], 0, NOW), ([], 0, later), (["away"], 1, later)):
        Recording.objects.update_or_create(topology=own, defaults={"read_at": now})
        found.append(list_steps(own, own, problems, waiting, now))
    (_, bind, *_) = list_steps(own, own, [], 1, NOW, are_known=False)
    assert (bind.state, "did not record" in bind.known) == ("unknown", True)
    assert [[step.state for step in steps] for steps in found] == [
        ["done", "done", "open", "open", "open"],
        ["done", "done", "done", "done", "open"],
        ["done", "open", "done", "open", "open"],
    ]
