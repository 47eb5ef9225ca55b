from __future__ import annotations

from pathlib import Path

import pytest

from analytics.disk import DiskSpace, read_disk_space

MB, GB = 10**6, 10**9


@pytest.mark.parametrize(
    ("free", "total", "is_short"),
    [
        (499 * MB, 2 * GB, True),
        (500 * MB, 2 * GB, False),
        (4 * GB, 100 * GB, True),
        (5 * GB, 100 * GB, False),
        (9 * GB, 4000 * GB, True),
        (10 * GB, 4000 * GB, False),
    ],
)
def test_room_is_short_below_a_twentieth_within_bounds(
    free: int, total: int, is_short: bool
) -> None:
    assert DiskSpace(free, total).is_short is is_short


def test_the_room_of_a_folder_that_is_not_there_yet_is_that_of_its_disk(tmp_path: Path) -> None:
    here, later = read_disk_space(tmp_path), read_disk_space(tmp_path / "log" / "deep")
    assert here is not None
    assert later is not None
    assert here.total == later.total > here.free > 0


def test_the_room_of_a_folder_below_a_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_disk_space(tmp_path / "file" / "log") is None
