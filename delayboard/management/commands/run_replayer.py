"""Runs one replayer alone, as the worker would."""

from __future__ import annotations

from typing import Any

from delayboard.worker.supervise import run_alone
from delayboard.worker.tasks import replayer
from topology import work
from topology.management.command import BoardCommand


class Command(BoardCommand):
    requires_system_checks = "__all__"
    help = "Run started replays, one at a time, until stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        run_alone(self, "replayer", replayer(work.name_process(), 1))
