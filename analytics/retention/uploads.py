"""The rule for uploaded logs that nobody imported: their files on this host, and their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Q

from analytics.log import LogError, name_of
from analytics.models import LogImport
from analytics.models.imports import UPLOADS
from analytics.retention.rules import Alive, RowRule, Rows


@dataclass(frozen=True)
class UploadRule(RowRule):
    """What another host stored is that host's to delete. A file goes before its row."""

    def older(self, now: datetime, cutoff: datetime) -> Rows:
        own = Q(path="") | Q(host=name_of(Path(settings.EVENT_LOG)))
        at_work = Q(work__isnull=False, work__ended_at=None)
        return super().older(now, cutoff).filter(own).exclude(at_work)

    def delete_batch(self, keys: list[Any], now: datetime) -> int:
        """Raises LogError."""
        for path in self.expired(now).filter(pk__in=keys).exclude(path="").values_list("path"):
            _delete(Path(*path))
        return super().delete_batch(keys, now)

    def delete_expired(self, now: datetime, alive: Alive) -> int:
        for path in self._left_files(now):
            _delete(path)
            alive()
        return super().delete_expired(now, alive)

    def _left_files(self, now: datetime) -> Iterator[Path]:
        """Files without a row, as a kill during an upload leaves them."""
        cutoff, folder = self.cutoff(now), Path(settings.EVENT_LOG).absolute() / UPLOADS
        known = set(LogImport.objects.exclude(path="").values_list("path", flat=True))
        if cutoff is None or not folder.is_dir():
            return
        for path in folder.iterdir():
            if str(path) not in known and path.stat().st_mtime < cutoff.timestamp():
                yield path


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LogError(f"Delayboard cannot delete an uploaded log: {reason}.") from error


UPLOADED = UploadRule(
    "Uploaded logs",
    30,
    "Files of Imports that were not imported, with their dry runs. An import deletes its file and "
    "keeps its row, because reports say what the log cannot know.",
    LogImport.objects.filter(is_imported=False),
    "created_at",
)
