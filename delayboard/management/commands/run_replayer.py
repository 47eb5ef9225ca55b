"""Runs one replayer alone, as the worker would."""

from __future__ import annotations

import os
import socket
from typing import Any

from django.core.management.base import BaseCommand

from delayboard.worker.supervise import run_alone
from delayboard.worker.tasks import replayer


class Command(BaseCommand):
    help = "Run started replays, one at a time, until stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        run_alone(self, "replayer", replayer(f"{socket.gethostname()}:{os.getpid()}", 1))
