"""Runs the worker: recorders, replays, nightly runs; or one of its tasks alone."""

from __future__ import annotations

import gc
import os
from typing import Any

from django.core.management.base import CommandParser

from delayboard.worker.supervise import Supervisor, keep_one_running, until_stopped
from delayboard.worker.tasks import list_tasks
from topology import work
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode

RECORDERS = "recorder"


class Command(BoardCommand):
    requires_system_checks = "__all__"
    help = "Run the recorders, the replays and the nightly schedule until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--only",
            metavar="TASK",
            default="",
            help=f"{RECORDERS}: the recorders alone; or one task of those that several processes "
            "may share, such as wait:SLUG, the forwarder of a topology",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        stop = until_stopped()
        only = options["only"]
        if only not in ("", RECORDERS):
            # What one process does for all has a lease of the worker.
            tasks = list_tasks(work.name_process()).values()
            shared = {one.key: one for one in tasks if not (one.is_exclusive or one.is_local)}
            if only not in shared:
                known = ", ".join((RECORDERS, *shared))
                raise BadInput(
                    f"No background task is called “{only[:80]}”. Choose one of {known}."
                )
            self.report(f"The background task {shared[only].name} runs.")
            keep_one_running(shared[only], stop)
            self.report("The background task has ended.")
            return
        self.report("The worker runs.")
        # Loaded modules stay: to search them for garbage takes some of the time of recorders.
        gc.freeze()
        ended = Supervisor(only=only).run(stop)
        if not ended:
            # A thread that hangs in a frozen broker cannot be joined; every task is
            # crash-safe, so it is left behind with the process.
            self.report("A background task did not end in time, so the worker stopped it.")
            os._exit(ExitCode.DONE)
