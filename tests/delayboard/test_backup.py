"""What a backup has while the recorder writes, and which are refused before anything changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django import Settings

from analytics import compacted
from analytics.log import Slot, name_of
from delayboard.backup import create
from delayboard.backup.contents import DESCRIPTION, BackupError, read_description
from delayboard.backup.create import back_up
from delayboard.backup.restore import restore
from tests.analytics.builders import NOON, an_entry, write_log
from tests.builders import make_broker
from topology.management.exit_codes import BadInput

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


def test_a_site_with_rows_or_lines_or_a_worker_is_refused(log: Path, tmp_path: Path) -> None:
    back_up(tmp_path / "backup")
    with pytest.raises(BadInput, match="has lines"):
        call_command("restore", str(tmp_path / "backup"))
    make_broker()
    with pytest.raises(BadInput, match="This database has brokers"):
        call_command("restore", str(tmp_path / "backup"))
    worker = Slot(log)
    with pytest.raises(BackupError, match="The worker runs"):
        restore(tmp_path / "backup", is_replacing=True)
    worker.close()
    with pytest.raises(BackupError, match="Name the folder of a whole backup"):
        restore(tmp_path, is_replacing=True)
    assert connection.introspection.table_names()
