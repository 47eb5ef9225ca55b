"""What is read from /proc, against processes and files of our own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from tests.builders import eventually
from tests.soak import meters


def test_memory_files_and_threads_of_a_process_are_what_it_has(tmp_path: Path) -> None:
    # What other tests left to the garbage has files open.
    gc.collect()
    before = meters.read([os.getpid()])
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    with ExitStack() as stack:
        for number in range(10):
            stack.enter_context((tmp_path / str(number)).open("w"))
        thread.start()
        held = bytearray(os.urandom(1)) * 30_000_000
        now = meters.read([os.getpid()])
        stop.set()
        thread.join()
    assert len(held) == 30_000_000
    assert now["files"] - before["files"] == 10
    assert now["threads"] - before["threads"] == 1
    assert 20 < now["memory"] - before["memory"] < 40


def test_a_process_that_is_gone_counts_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert meters.read([gone.pid]) == {"memory": 0, "files": 0, "threads": 0}
    assert meters.members(gone.pid) == {"run": gone.pid}


def test_descendants_are_children_and_their_children() -> None:
    with subprocess.Popen(
        ["bash", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        sleeper = int(shell.stdout.readline())
        assert {shell.pid, sleeper} <= set(meters.descendants(os.getpid()))
        os.kill(sleeper, 9)
        shell.wait(60)


def test_the_site_and_the_worker_are_known_by_their_commands() -> None:
    # The words stand where those of `python manage.py worker` stand.
    script = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, "manage.py", "worker", "-"], stdin=subprocess.PIPE
    ) as worker:
        found = eventually(lambda: meters.members(os.getpid()).get("worker"), "the worker is seen")
        assert found == worker.pid
        assert worker.stdin is not None
        worker.stdin.close()


def test_the_size_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one").write_bytes(b"x" * 1024**2)
    (tmp_path / "two").write_bytes(b"x" * 1024**2)
    assert meters.size_mb(tmp_path) == 2
    assert meters.size_mb(tmp_path / "two") == 1
    assert meters.size_mb(tmp_path / "none") == 0
