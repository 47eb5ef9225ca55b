"""The squashed migrations against those that they replace."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from analytics.models import ScheduledMessage, ScheduledText
from analytics.scheduled import search
from tests.upgrades.databases import new_database, using
from tests.upgrades.schema import describe

pytestmark = pytest.mark.both_databases

OURS = ("topology", "analytics", "delayboard")


def planned() -> list[str]:
    """Return which of our migrations the default database lacks."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return sorted(f"{one.app_label}.{one.name}" for one, _ in plan if one.app_label in OURS)


def recorded() -> list[tuple[str, str]]:
    """Return the squashed migrations that the default database has."""
    keys = MigrationRecorder(connection).applied_migrations()
    return sorted((app, name) for app, name in keys if "_squashed_" in name)


def test_they_make_the_schema_of_those_they_replace(migrated: None) -> None:
    assert planned() == []
    assert [app for app, _ in recorded()] == sorted(OURS)
    old, keys = describe(), recorded()
    with new_database() as name, using(name):
        assert planned() == [f"{app}.{name}" for app, name in keys]
        call_command("migrate", verbosity=0)
        assert (planned(), recorded()) == ([], keys)
        squashed = describe()
    assert sorted(squashed - old) == []
    assert sorted(old - squashed) == []
    names = " ".join(name for name, _ in squashed)
    assert "analytics_textindex" in names
    assert "delayboard_letterindex" in names


def test_a_partly_migrated_database_goes_on_with_the_old_ones(before_groups: Any) -> None:
    assert planned() == [
        "analytics.0005_uncounted_deliveries",
        "delayboard.0010_exception_messages_of_groups",
        "delayboard.0011_regroup_dead_letters",
        "delayboard.0012_merged_groups",
        "delayboard.0013_replay_repeats",
        "topology.0007_replaced_tap",
        "topology.0008_missing_binding",
    ]


def test_its_rows_stay(migrated: None) -> None:
    text = ScheduledText.objects.get()
    assert text.message.topology is not None
    assert (text.message.topology.name, text.text) == ("T", "searched")
    assert search._indexed("arch", ScheduledMessage.objects.all()) == ([text.pk], False)


def test_any_earlier_state_has_a_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever each app had applied, as far as the dependencies of that time allow it."""
    old = MigrationLoader(None, replace_migrations=False)
    squashed = {key[0]: one for key, one in old.disk_migrations.items() if one.replaces}
    assert set(squashed) == set(OURS)
    others = {key: one for key, one in old.disk_migrations.items() if key[0] not in OURS}
    tried = 0
    for numbers in product(*(range(len(squashed[app].replaces) + 1) for app in OURS)):
        pairs = zip(OURS, numbers, strict=True)
        state = {key for app, number in pairs for key in squashed[app].replaces[:number]}
        parents = {parent.key for key in state for parent in old.graph.node_map[key].parents}
        if not {key for key in parents if key[0] in OURS} <= state:
            continue
        tried += 1
        keys = others | {key: old.disk_migrations[key] for key in state}
        monkeypatch.setattr(
            MigrationRecorder, "applied_migrations", lambda _, keys=keys: dict(keys)
        )
        executor = MigrationExecutor(connection)
        executor.loader.check_consistent_history(connection)
        assert not executor.loader.detect_conflicts()
        plan = [one for one, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
        reached = state | {
            key for one in plan for key in one.replaces or [(one.app_label, one.name)]
        }
        assert reached == {key for one in squashed.values() for key in one.replaces}
        assert len(reached) == len(state) + sum(len(one.replaces) or 1 for one in plan)
    assert tried > 100
