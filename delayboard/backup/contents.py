"""What a backup folder has, and what its description says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from analytics.log import sync_folder

DESCRIPTION = "backup.json"
SQLITE, TABLES, KEYS, LOG, PARQUET = "database.sqlite3", "tables", "keys", "log", "parquet"
# Files with keys in DELAYBOARD_VAR, where no setting has them.
KEY_FILES = ("signing_key", "credential_keys")
FORMAT = 1


class BackupError(Exception):
    """Nothing was backed up or restored; the message says why in one sentence."""


@dataclass(frozen=True)
class Backup:
    """`began_at` is the moment of the database. `migrations` are those that it had, by app;
    `columns` those of each table of PostgreSQL; `keys` the fingerprint of the keys.
    """

    began_at: str
    vendor: str
    migrations: Mapping[str, Sequence[str]]
    columns: Mapping[str, Sequence[str]]
    keys: str
    parquet_url: str
    format: int = FORMAT

    @property
    def moment(self) -> datetime:
        return datetime.fromisoformat(self.began_at)


def sync(folder: Path) -> None:
    """Have everything in a folder on the disk, and its names: a power cut takes nothing back."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync_file(Path(place, name))
        sync_folder(Path(place))


def sync_file(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_description(folder: Path, backup: Backup) -> None:
    (folder / DESCRIPTION).write_text(json.dumps(asdict(backup), indent=1))


def read_description(folder: Path) -> Backup:
    """Raises BackupError for what is no backup, or one of a later format."""
    try:
        found = json.loads((folder / DESCRIPTION).read_text())
        if found["format"] > FORMAT:
            raise BackupError(
                f"A newer version of Delayboard made {folder}. Install that version first."
            )
        return Backup(**found)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BackupError(
            f"{folder / DESCRIPTION} cannot be read: {reason}. Name the folder of a whole backup."
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise BackupError(f"{folder / DESCRIPTION} is damaged. Restore another backup.") from error
