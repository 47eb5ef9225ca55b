"""Runs the worker: recorders, replays, nightly runs."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import CommandParser

from delayboard.worker.supervise import Supervisor, until_stopped
from topology.management.command import BoardCommand
from topology.management.exit_codes import ExitCode


class Command(BoardCommand):
    requires_system_checks = "__all__"
    help = "Run the recorders, the replays and the nightly schedule until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--only", choices=("recorder",), default="", help="Run the recorders alone."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        stop = until_stopped()
        self.report("The worker runs.")
        ended = Supervisor(only=options["only"]).run(stop)
        if not ended:
            # A thread that hangs in a frozen broker cannot be joined; every task is
            # crash-safe, so it is left behind with the process.
            self.report("A background task did not end in time, so the worker stopped it.")
            os._exit(ExitCode.DONE)
