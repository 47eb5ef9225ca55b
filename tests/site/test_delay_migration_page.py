"""The page of a migration of waiting messages: targets, roles, and refusals in a sentence."""

from __future__ import annotations

import pytest
from django.urls import reverse

from analytics.models import ScheduledMessage
from delayboard.delay_migration.steps import QUIET, list_steps
from delayboard.models import DelayMigration
from tests.builders import make_broker
from tests.site.desk import signed_in
from tests.site.test_scheduled_changes_pages import NOW, row
from topology import work
from topology.models import Role, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import delay_levels

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
    own = work.ask("migrate", source.pk, broker=source.broker, user=None)
    DelayMigration.objects.create(source=source, target=target, work=own, moved=234, doubled=5)
    address = reverse("migrate_delays", args=[source.slug])
    page = signed_in(Role.OPERATOR).get(address, {"target": target.slug}).content.decode()
    assert "interrupted" in page
    assert "234" in page
    assert 'role="alert"' in page


def test_publishers_are_done_when_nothing_entered_for_ten_minutes(row: ScheduledMessage) -> None:
    own, later = Topology.objects.get(), NOW + 2 * QUIET
    found = [
        list_steps(own, own, problems, waiting, now)
        for problems, waiting, now in (([], 0, NOW), ([], 0, later), (["away"], 1, later))
    ]
    assert [[step.is_done for step in steps] for steps in found] == [
        [True, True, False, False, False],
        [True, True, True, True, False],
        [True, False, True, False, False],
    ]
