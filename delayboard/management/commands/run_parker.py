"""Runs one watched queue's parker alone, as the worker would."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from delayboard.models import DeadLetterQueue
from delayboard.worker.duties import parker_of
from delayboard.worker.memory import collect_rarely
from delayboard.worker.supervise import keep_running, until_stopped


class Command(BaseCommand):
    help = "Park what comes into a watched dead-letter queue, until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the broker's slug, as in its page's address")
        parser.add_argument("queue", help="the queue's name")

    def handle(self, *args: Any, **options: Any) -> None:
        rows = DeadLetterQueue.objects.filter(is_confirmed=True, is_watched=True)
        row = rows.filter(broker__slug=options["broker"], queue=options["queue"]).first()
        if row is None:
            raise CommandError("This queue is not watched: switch that on at its page first.")
        stop = until_stopped()
        collect_rarely()
        self.stdout.write(f"The parker of {row.queue} runs.")
        self.stdout.flush()
        keep_running(parker_of(row), stop)
        self.stdout.write("The parker has ended.")
