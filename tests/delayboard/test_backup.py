"""What a backup has while the recorder writes, and which are refused before anything changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.apps import apps
from django.apps.registry import Apps
from django.core.management import call_command
from django.db import connection, models
from pytest_django import Settings

from analytics import compacted
from analytics.log import Slot, name_of
from delayboard.backup import create, tables
from delayboard.backup import restore as restore_module
from delayboard.backup.contents import DESCRIPTION, BackupError, read_description
from delayboard.backup.create import back_up
from delayboard.backup.restore import restore
from delayboard.changes.take import stated_headers
from delayboard.delay_migration.migrate import KIND as MIGRATE
from delayboard.models import ChangeKind, ChangeState, ScheduledChange
from tests.analytics.builders import NOON, an_entry, write_log
from tests.builders import make_broker, make_pair
from topology import work
from topology.management.exit_codes import BadInput
from topology.message import DOUBLED_HEADER
from topology.models import Broker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]


@pytest.fixture
def log(settings: Settings, tmp_path: Path) -> Path:
    settings.EVENT_LOG = tmp_path / "log"
    write_log(settings.EVENT_LOG, [an_entry("m1", NOON)], "tap.orders.1")
    name_of(settings.EVENT_LOG)
    return tmp_path / "log"


def lines_of(folder: Path) -> bytes:
    (path,) = (folder / "log").rglob("*.jsonl")
    return path.read_bytes()


def test_a_backup_has_whole_lines_the_name_of_the_log_and_its_parquet(
    log: Path, tmp_path: Path
) -> None:
    (path,) = log.rglob("*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"v": 1, "half')
    parquet = tmp_path / "parquet" / "run=1"
    parquet.mkdir(parents=True)
    (parquet / "part.parquet").write_bytes(b"PAR1")
    (log / f"date={NOON.date()}").mkdir(exist_ok=True)
    compacted.write(log, NOON.date(), compacted.Compacted(f"file://{parquet}", {}))
    backup = back_up(tmp_path / "backup")
    assert lines_of(tmp_path / "backup") == whole
    assert (tmp_path / "backup" / "log" / ".name").read_text().strip() == name_of(log)
    assert list((tmp_path / "backup" / "parquet").rglob("*.parquet"))
    assert read_description(tmp_path / "backup") == backup
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0


def test_a_backup_that_is_interrupted_leaves_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(create, "_copy_log", fail)
    with pytest.raises(BackupError, match="no space left"):
        back_up(tmp_path / "backup")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_folder_that_has_something_is_refused(log: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="is not empty"):
        back_up(log)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[None]:
    """The test database, with what a restore does to it undone."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE ours (name text); INSERT INTO ours VALUES ('kept')")
        yield
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE ours")
        return
    # A restore renames it: the other tests go on with the file that they had.
    name = connection.settings_dict["NAME"]
    connection.close()
    shutil.copyfile(name, tmp_path / "database.sqlite3")
    connection.settings_dict["NAME"] = str(tmp_path / "database.sqlite3")
    yield
    connection.close()
    connection.settings_dict["NAME"] = name


@pytest.mark.usefixtures("database")
def test_a_restore_that_is_killed_after_the_database_leaves_nothing_that_is_sent_on(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(models.Model):
        """A later version has it, and its table is not made yet."""

        class Meta:
            apps = Apps()
            app_label = "delayboard"

        def __str__(self) -> str:
            return str(self.pk)

    topology = make_pair(make_broker())
    migration = work.create(MIGRATE, 1, broker=topology.broker, user=None)
    for kind, is_copied, state in (
        (ChangeKind.DELIVER_NOW, True, ChangeState.PENDING),
        (ChangeKind.RESCHEDULE, False, ChangeState.PENDING),
        (ChangeKind.CANCEL, False, ChangeState.PENDING),
        (ChangeKind.RESCHEDULE, True, ChangeState.DONE),
    ):
        ScheduledChange.objects.create(
            broker=topology.broker,
            topology=topology,
            kind=kind,
            is_copied=is_copied,
            state=state,
            key="m",
            due_at=NOON,
        )
    back_up(tmp_path / "backup")
    Broker.objects.update(name="Changed later")
    monkeypatch.setattr(restore_module, "_restore_keys", Mock(side_effect=OSError("killed")))
    known = list(apps.get_models(include_auto_created=True))
    monkeypatch.setattr(tables, "apps", Mock(get_models=lambda **_: [*known, Later]))
    with pytest.raises(BackupError, match="killed"):
        restore(tmp_path / "backup", is_replacing=True)
    assert Broker.objects.get().name == "Test broker"
    migration.refresh_from_db()
    assert migration.pause_requested
    assert [
        (
            one.copy_begun_at is not None,
            one.may_be_duplicated,
            DOUBLED_HEADER in stated_headers(one),
        )
        for one in ScheduledChange.objects.order_by("pk")
    ] == [(True, True, True), (False, True, True), (False, False, False), (False, False, False)]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM ours")
            assert cursor.fetchall() == [("kept",)]
    else:
        assert not list(tmp_path.glob("*.restoring-*"))
        assert list(tmp_path.glob("database.sqlite3.before-restore-*"))


@pytest.mark.sqlite
@pytest.mark.usefixtures("database")
def test_a_restore_that_fails_before_it_has_paused_leaves_the_database_as_it_was(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(tmp_path / "backup")
    make_broker()
    monkeypatch.setattr(restore_module, "_pause_what_sends", Mock(side_effect=OSError("killed")))
    with pytest.raises(BackupError, match="killed"):
        restore(tmp_path / "backup", is_replacing=True)
    assert Broker.objects.exists()
    assert not list(tmp_path.glob("*.restoring-*"))


@pytest.mark.postgres
@pytest.mark.usefixtures("database")
def test_tables_that_a_table_of_others_needs_are_not_dropped(log: Path, tmp_path: Path) -> None:
    back_up(tmp_path / "backup")
    make_broker()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ours ADD broker bigint REFERENCES topology_broker")
    with pytest.raises(BackupError, match="on table ours depends on table topology_broker"):
        restore(tmp_path / "backup", is_replacing=True)
    assert Broker.objects.exists()


def changed(folder: Path, **values: Any) -> None:
    described = json.loads((folder / DESCRIPTION).read_text())
    (folder / DESCRIPTION).write_text(json.dumps(described | values))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"format": 2}, "newer version"),
        ({"migrations": {"topology": ["0001_initial", "9999_later"]}}, "topology.9999_later"),
        ({"vendor": "oracle"}, "The backup is of oracle"),
        ({"vendor": None, "unknown": 1}, "is damaged"),
    ],
)
def test_a_backup_that_this_version_cannot_restore_changes_nothing(
    log: Path, tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    back_up(tmp_path / "backup")
    changed(tmp_path / "backup", **values)
    with pytest.raises(BackupError, match=why):
        restore(tmp_path / "backup", is_replacing=True)
    assert lines_of(tmp_path)


def test_parts_that_this_version_does_not_have_are_named(log: Path, tmp_path: Path) -> None:
    back_up(tmp_path / "backup")
    described = json.loads((tmp_path / "backup" / DESCRIPTION).read_text())
    changed(tmp_path / "backup", migrations=described["migrations"] | {"plans": ["0001_initial"]})
    errors = StringIO()
    call_command("restore", str(tmp_path / "backup"), replace=True, stderr=errors)
    assert "This version has no plans, which the backup has." in errors.getvalue()


def test_a_site_with_tables_or_lines_or_a_worker_is_refused(log: Path, tmp_path: Path) -> None:
    back_up(tmp_path / "backup")
    with pytest.raises(BadInput, match="This database has tables"):
        call_command("restore", str(tmp_path / "backup"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection.introspection, "table_names", list)
        with pytest.raises(BadInput, match="has lines"):
            call_command("restore", str(tmp_path / "backup"))
    worker = Slot(log)
    with pytest.raises(BackupError, match="The worker runs"):
        restore(tmp_path / "backup", is_replacing=True)
    worker.close()
    with pytest.raises(BackupError, match="Name the folder of a whole backup"):
        restore(tmp_path, is_replacing=True)
    assert connection.introspection.table_names()
