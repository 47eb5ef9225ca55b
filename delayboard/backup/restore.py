"""Makes a site of a backup, on this machine or another.

Nothing that was being sent goes on by itself: after the backup it may have been sent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import Error, connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.models import F
from django.utils import timezone

from analytics import compacted
from analytics.log import LogError, Slot, day_folders, make_folder, sync_folder
from delayboard.backup.contents import (
    KEY_FILES,
    KEYS,
    LOG,
    PARQUET,
    SQLITE,
    TABLES,
    Backup,
    BackupError,
    read_description,
    sync,
    sync_file,
)
from delayboard.backup.tables import drop_tables, load_tables
from delayboard.dead_letters.replay import batch_state
from delayboard.delay_migration.migrate import KIND as MIGRATE
from delayboard.environment import fingerprint
from delayboard.models import (
    BackgroundTask,
    ChangeKind,
    ChangeState,
    ItemState,
    ReplayBatch,
    ScheduledChange,
)
from delayboard.models.replay import ENDED_BATCH
from delayboard.publishing import publish_job
from topology.models import Work, WorkState
from topology.models.work import ENDED, TASK


@dataclass(frozen=True)
class Restored:
    """What waits for a person after the restore, and whether this machine has other keys.

    `unknown` are the parts (Django apps) of the backup that this version does not have.
    """

    moment: datetime
    replays: int
    migrations: int
    publish_jobs: int
    changes: int
    has_other_keys: bool = False
    unknown: tuple[str, ...] = ()


def restore(
    folder: Path, *, is_replacing: bool = False, report: Callable[[str], None] = lambda _: None
) -> Restored:
    """Make this site what the backup has. Raises BackupError; before the first step nothing has
    changed.

    With `is_replacing` a site that is there is replaced: files are set aside, tables are dropped.
    """
    backup = read_description(folder)
    unknown = _find_unknown(backup)
    if backup.vendor != connection.vendor:
        raise BackupError(
            f"The backup is of {backup.vendor}, and DATABASE_URL names {connection.vendor}. Set "
            "DATABASE_URL to an empty database of that kind."
        )
    if not is_replacing:
        has_tables = bool(connection.introspection.table_names())
        has_lines = next(day_folders(settings.EVENT_LOG), None) is not None
        if has_tables or has_lines:
            what = "This database has tables" if has_tables else f"{settings.EVENT_LOG} has lines"
            raise BackupError(
                f"{what}. Restore into an empty site, or replace this one with --replace."
            )
    try:
        with closing(Slot(settings.EVENT_LOG)) as slot:
            if slot.name != slot.log:
                raise BackupError("The worker runs. Stop the site and the worker first.")
            report("database, and work that was being done")
            restored = _restore_database(folder, backup)
            report("keys")
            _restore_keys(folder)
            report("event log and Parquet")
            _restore_log(folder)
    except (OSError, LogError, Error) as error:
        # PostgreSQL's hint, to drop what others have too, is none here.
        why = " ".join(str(error).partition("\nHINT:")[0].split())
        raise BackupError(
            f"The restore failed: {why}. Correct this, and restore again with --replace."
        ) from error
    has_other_keys = backup.keys != _read_fingerprint()
    return replace(restored, has_other_keys=has_other_keys, unknown=unknown)


def _find_unknown(backup: Backup) -> tuple[str, ...]:
    """The apps of the backup that this version does not have. Raises BackupError for a backup of
    a newer version, which has later migrations of an app that it has.
    """
    known = MigrationLoader(None).disk_migrations or {}
    ours = {app for app, _ in known}
    unknown = [
        f"{app}.{name}"
        for app, names in backup.migrations.items()
        for name in names
        if app in ours and (app, name) not in known
    ]
    if unknown:
        raise BackupError(
            f"A newer version of Delayboard made the backup (it has {unknown[0]}). Install that "
            "version first."
        )
    return tuple(sorted(backup.migrations.keys() - ours))


def _restore_database(folder: Path, backup: Backup) -> Restored:
    """A kill leaves no database in which something is sent on."""
    if backup.vendor == "sqlite":
        return _restore_sqlite(folder / SQLITE, backup.moment)
    foreign = drop_tables()
    installed = {config.label for config in apps.get_app_configs()}
    for app, names in backup.migrations.items():
        if app in installed:
            call_command("migrate", app, names[-1], interactive=False, verbosity=0)
    with transaction.atomic():
        load_tables(folder / TABLES, backup.columns, foreign)
        # No migration can change a table with checks that are still due.
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        call_command("migrate", interactive=False, verbosity=0)
        return _pause_what_sends(backup.moment)


def _restore_sqlite(source: Path, moment: datetime) -> Restored:
    """Make the database beside the one that is there, and put it in place once it is whole."""
    name = Path(connection.settings_dict["NAME"])
    name.parent.mkdir(parents=True, exist_ok=True)
    fresh = name.with_name(f"{name.name}.restoring-{os.getpid()}")
    fresh.touch(0o600)
    shutil.copyfile(source, fresh)
    connection.close()
    connection.settings_dict["NAME"] = str(fresh)
    try:
        call_command("migrate", interactive=False, verbosity=0)
        with transaction.atomic():
            restored = _pause_what_sends(moment)
        connection.close()
        for path in _files_of(fresh):
            if path.exists():
                sync_file(path)
        for path in _files_of(name):
            if path.exists():
                path.rename(_aside(path))
        # The database last, after a write-ahead log that it may still have.
        for path, target in zip(reversed(_files_of(fresh)), reversed(_files_of(name)), strict=True):
            if path.exists():
                path.rename(target)
        sync_folder(name.parent)
    finally:
        connection.close()
        connection.settings_dict["NAME"] = str(name)
        for path in _files_of(fresh):
            path.unlink(missing_ok=True)
    return restored


def _files_of(database: Path) -> list[Path]:
    return [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]


def _restore_keys(folder: Path) -> None:
    for path in sorted((folder / KEYS).iterdir()):
        target = settings.VAR / path.name
        if target.exists():
            if target.read_text() == path.read_text():
                continue
            target.rename(_aside(target))
        shutil.copy2(path, target)
        target.chmod(0o600)
        sync_file(target)
    sync_folder(settings.VAR)


def _read_fingerprint() -> str:
    """The fingerprint of the keys that the next process has."""
    values = (
        os.environ.get(name.upper()) or (settings.VAR / file).read_text().strip()
        for name, file in zip(("secret_key", "credential_keys"), KEY_FILES, strict=True)
    )
    signing, credentials = values
    return fingerprint(signing, *credentials.split())


def _restore_log(folder: Path) -> None:
    """The days that are there are set aside, also those of the Parquet."""
    log: Path = settings.EVENT_LOG
    for _, old in list(day_folders(log)):
        aside = log / f".before-restore-{os.getpid()}"
        aside.mkdir(exist_ok=True)
        old.rename(aside / old.name)
    shutil.copytree(folder / LOG, log, dirs_exist_ok=True)
    sync(log)
    for day, _ in day_folders(log):
        found = compacted.read(log, day)
        if found is None:
            continue
        run = Path(found.url).name
        target = settings.VAR / PARQUET / "v1" / f"date={day}" / run
        make_folder(target.parent)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder / PARQUET / f"date={day}" / run, target)
        sync(target.parent)
        compacted.write(log, day, replace(found, url=f"file://{target}"))


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.before-restore-{os.getpid()}")


def _pause_what_sends(moment: datetime) -> Restored:
    """Pause replays and migrations, end publish jobs, mark scheduled changes, free the rest for the
    worker; in the caller's transaction.

    Changes are not paused: an interception holds the messages of a queue that others need.
    """
    at = timezone.localtime(moment)
    since = f"Restored from a backup of {at:%Y-%m-%d %H:%M:%S %Z}."
    BackgroundTask.objects.all().delete()
    Work.objects.filter(kind=TASK).delete()
    Work.objects.exclude(state__in=ENDED).update(
        state=WorkState.WAITING, fence=F("fence") + 1, leased_until_at=None, not_before_at=None
    )
    started = ReplayBatch.objects.filter(started_at__isnull=False).exclude(state__in=ENDED_BATCH)
    replays = list(started.select_for_update(of=("self",)))
    for batch in replays:
        # What was sent after the backup is not known here: it would be sent once more.
        rest = batch.items.filter(state__in=(ItemState.PENDING, ItemState.PUBLISHING))
        marked = rest.filter(may_be_duplicated=False).update(may_be_duplicated=True)
        ReplayBatch.objects.filter(pk=batch.pk).update(doubled=F("doubled") + marked)
        batch_state.set_paused(
            batch,
            f"{since} Messages that were sent after it are sent again when you resume: they are "
            "marked as possible duplicates.",
        )
    open_work = Work.objects.exclude(state__in=ENDED)
    migrations = open_work.filter(kind=MIGRATE).update(
        pause_requested=True, error=f"{since} Resume the migration to move the rest."
    )
    jobs = open_work.filter(kind=publish_job.KIND).update(
        state=WorkState.FAILED,
        ended_at=timezone.now(),
        error=f"{since} More may have been published after it. Check this, and publish the rest.",
    )
    # What was published in place of a message after the backup is published once more.
    changes = ScheduledChange.objects.filter(state=ChangeState.PENDING, copied_at=None)
    changes = changes.exclude(kind=ChangeKind.CANCEL)
    changes.filter(is_copied=True, copy_begun_at=None).update(copy_begun_at=moment)
    return Restored(moment, len(replays), migrations, jobs, changes.update(may_be_duplicated=True))
