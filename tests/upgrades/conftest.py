"""Databases of earlier versions, made by their own migrations once for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import call_command

from tests.upgrades.databases import migrate_by_old, new_database, using
from tests.upgrades.old_rows import create_replays, create_waiting_message

BEFORE_REPLAYS = [("topology", "0006_mask_rule"), ("delayboard", "0004_letter_search")]
BEFORE_GROUPS = [
    ("topology", "0006_mask_rule"),
    ("analytics", "0004_search_text"),
    ("delayboard", "0009_left_out_letters"),
]


@dataclass(frozen=True)
class OldDatabase:
    name: str
    apps: Any


@pytest.fixture(scope="session")
def old_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[OldDatabase]:
    """A database at BEFORE_GROUPS, with replays from BEFORE_REPLAYS."""
    with django_db_blocker.unblock(), new_database() as name:
        with using(name):
            create_replays(migrate_by_old(BEFORE_REPLAYS))
            apps = migrate_by_old(BEFORE_GROUPS)
        yield OldDatabase(name, apps)


@pytest.fixture(scope="session")
def migrated_database(old_database: OldDatabase, django_db_blocker: Any) -> Iterator[str]:
    """A copy with a waiting message, migrated to this version."""
    with django_db_blocker.unblock(), new_database(old_database.name) as name:
        with using(name):
            create_waiting_message(old_database.apps)
            call_command("migrate", verbosity=0)
        yield name


@pytest.fixture
def migrated(migrated_database: str, transactional_db: None) -> Iterator[None]:
    """The migrated database is the default one. Tests only read it."""
    with using(migrated_database):
        yield


@pytest.fixture
def before_groups(old_database: OldDatabase, transactional_db: None) -> Iterator[Any]:
    """The models of an old database, whose groups have the ids of their messages' keys."""
    with new_database(old_database.name) as name, using(name):
        yield old_database.apps
