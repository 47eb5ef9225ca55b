"""How much room the disk of the event log has left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SHORT_SHARE = 0.05
SHORT_AT_LEAST, SHORT_AT_MOST = 500 * 10**6, 10 * 10**9
FULL_BYTES = 100_000


@dataclass(frozen=True)
class DiskSpace:
    """Bytes of a disk: `free` for ordinary users, of `total`."""

    free: int
    total: int

    @property
    def is_short(self) -> bool:
        """Less than a twentieth is left, or too little for a day in any case."""
        share = int(self.total * SHORT_SHARE)
        return self.free < min(max(share, SHORT_AT_LEAST), SHORT_AT_MOST)

    @property
    def is_full(self) -> bool:
        """Whether not even a small batch has room."""
        return self.free < FULL_BYTES


def read_disk_space(folder: Path) -> DiskSpace | None:
    """The room on the disk of this folder, or of where it would be made; None if unknown."""
    for place in (folder, *folder.parents):
        try:
            disk = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return DiskSpace(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)
    return None
