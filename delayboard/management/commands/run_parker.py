"""Runs one watched queue's parker alone, as the worker would."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from delayboard.models import DeadLetterQueue
from delayboard.worker.supervise import run_alone
from delayboard.worker.tasks import parker_of
from topology.management.command import BoardCommand
from topology.management.find_rows import find_broker


class Command(BoardCommand):
    requires_system_checks = "__all__"
    help = "Park new messages of an automatically parked queue until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the broker's slug, as in its page's address")
        parser.add_argument("queue", help="the queue's name")

    def handle(self, *args: Any, **options: Any) -> None:
        broker = find_broker(options["broker"])
        rows = DeadLetterQueue.objects.filter(is_confirmed=True, parks_automatically=True)
        row = rows.filter(broker=broker, queue=options["queue"]).first()
        if row is None:
            raise CommandError(
                "This queue is not parked automatically. Select “Start automatic parking” on "
                "its page."
            )
        run_alone(self, f"parker of {row.queue}", parker_of(row))
