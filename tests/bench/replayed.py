"""A replay carried out: `python -m tests.bench.replayed BATCH` prints its peak memory, in KiB."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Event


def carry_out(batch: int) -> None:
    """Be its worker until it has ended."""
    from delayboard.dead_letters.replay import send_batch
    from delayboard.dead_letters.replay.batch_state import KIND
    from delayboard.models import ReplayBatch
    from topology import work

    while not ReplayBatch.objects.get(pk=batch).is_ended:
        claimed = work.claim([KIND], "bench")
        if claimed is None:
            time.sleep(0.02)
        else:
            work.attempt(send_batch.replay, claimed, stop=Event())


def peak_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    import django

    django.setup()
    carry_out(int(sys.argv[1]))
    sys.stdout.write(f"{peak_kib()}\n")


if __name__ == "__main__":
    main()
