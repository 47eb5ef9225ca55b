"""What a new index takes as read of an event log that is older than it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings


def note_what_was_read(apps: Any, schema_editor: Any) -> None:
    """The recorders of before put into the index themselves what they wrote into the log."""
    log = Path(settings.EVENT_LOG)
    log_position = apps.get_model("analytics", "LogPosition")
    log_position.objects.bulk_create(
        [
            log_position(path=str(path.relative_to(log)), bytes_read=path.stat().st_size)
            for path in log.glob("date=*/hour=*/*.jsonl")
        ],
        batch_size=500,
    )
