"""Runs one replayer alone, as the worker would."""

from __future__ import annotations

import os
import socket
from typing import Any

from django.core.management.base import BaseCommand

from delayboard.worker.duties import replayer
from delayboard.worker.memory import collect_rarely
from delayboard.worker.supervise import keep_running, until_stopped


class Command(BaseCommand):
    help = "Do the replays that were started, one at a time, until stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        stop = until_stopped()
        collect_rarely()
        self.stdout.write("The replayer runs.")
        self.stdout.flush()
        keep_running(replayer(f"{socket.gethostname()}:{os.getpid()}", 1), stop)
        self.stdout.write("The replayer has ended.")
