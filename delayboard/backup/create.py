"""Makes a backup while Delayboard runs.

First the database, then the log: what the database says was read of a file is in the copy of it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder

from analytics import compacted
from analytics.log import NAME_FILE, day_folders, sync_folder
from delayboard.backup.contents import (
    KEY_FILES,
    KEYS,
    LOG,
    PARQUET,
    SQLITE,
    TABLES,
    Backup,
    BackupError,
    sync,
    write_description,
)
from delayboard.backup.tables import dump_tables

PIECE_BYTES = 1024 * 1024
# Attempts to copy the Parquet of a day, which a compaction may replace meanwhile.
PARQUET_ATTEMPTS = 5


def back_up(folder: Path, report: Callable[[str], None] = lambda _: None) -> Backup:
    """Write a backup into a new folder, which is there only when it is whole.

    `report` gets the name of each step. Raises BackupError.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BackupError(f"{folder} is not empty. Name a new folder.")
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        aside.mkdir(mode=0o700, parents=True)
        try:
            backup = _fill(aside, report)
            if folder.exists():
                folder.rmdir()
            sync(aside)
            aside.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BackupError(f"Delayboard cannot write the backup to {folder}: {reason}.") from error
    return backup


def _fill(folder: Path, report: Callable[[str], None]) -> Backup:
    report("database")
    began_at = datetime.now(UTC)
    migrations, columns = _copy_database(folder)
    report("keys")
    (folder / KEYS).mkdir()
    for name in KEY_FILES:
        if (settings.VAR / name).exists():
            shutil.copy2(settings.VAR / name, folder / KEYS / name)
    report("event log")
    _copy_log(settings.EVENT_LOG, folder / LOG)
    report("Parquet")
    # The Parquet of each day that lies on this machine, with the description that names
    # it.
    for day, _ in day_folders(settings.EVENT_LOG):
        for attempt in range(PARQUET_ATTEMPTS):
            found = compacted.read(settings.EVENT_LOG, day)
            if found is None or urlsplit(found.url).scheme != "file":
                break
            source = Path(urlsplit(found.url).path)
            copy = folder / PARQUET / f"date={day}" / source.name
            try:
                shutil.copytree(source, copy)
            except (FileNotFoundError, shutil.Error):
                shutil.rmtree(copy, ignore_errors=True)
                if compacted.read(settings.EVENT_LOG, day) == found and attempt:
                    raise BackupError(
                        f"The Parquet of {day} is missing: {source}. Delete “{compacted.MANIFEST}” "
                        "in the folder of that day in the event log, and try again."
                    ) from None
                continue
            compacted.write(folder / LOG, day, found)
            break
    backup = Backup(
        began_at=began_at.isoformat(),
        vendor=connection.vendor,
        migrations=migrations,
        columns=columns,
        keys=settings.KEYS_FINGERPRINT,
        parquet_url=settings.PARQUET_URL,
    )
    write_description(folder, backup)
    return backup


def _copy_database(folder: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The migrations and, of PostgreSQL, the columns of the database of one moment."""
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        with (
            closing(sqlite3.connect(f"file:{quote(name)}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(folder / SQLITE)) as copy,
        ):
            source.backup(copy)
            rows = copy.execute("SELECT app, name FROM django_migrations ORDER BY id")
            return _by_app(rows), {}
    (folder / TABLES).mkdir()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        applied = MigrationRecorder(connection).migration_qs.order_by("id")
        return _by_app(applied.values_list("app", "name")), dump_tables(folder / TABLES)


def _by_app(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for app, name in rows:
        found[app].append(name)
    return dict(found)


def _copy_log(log: Path, target: Path) -> None:
    """The whole lines that each file has now, and the name of the log."""
    target.mkdir()
    if (log / NAME_FILE).exists():
        shutil.copy2(log / NAME_FILE, target / NAME_FILE)
    for _, folder in day_folders(log):
        for path in sorted(folder.glob("hour=*/*.jsonl")):
            copy = target / path.relative_to(log)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                _copy_lines(path, copy)
            except FileNotFoundError:
                # A day past its retention was deleted at this moment.
                continue


def _copy_lines(path: Path, copy: Path) -> None:
    with path.open("rb") as file, copy.open("wb") as out:
        left, end = os.fstat(file.fileno()).st_size, 0
        while left and (piece := file.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            if (found := piece.rfind(b"\n")) >= 0:
                end = out.tell() + found + 1
            out.write(piece)
        # The recorder may be writing the last line.
        out.truncate(end)
    shutil.copystat(path, copy)
