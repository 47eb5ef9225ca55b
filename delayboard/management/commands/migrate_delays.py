"""Moves waiting messages to delay levels, each with what is left of its delay."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from delayboard.delay_migration.check import check, refuse_unfit
from delayboard.delay_migration.migrate import migrate
from delayboard.delay_migration.move_messages import malformed_queue
from delayboard.management.confirmation import add_confirmation, unconfirmed
from delayboard.worker.supervise import until_stopped
from topology import work
from topology.broker.errors import BrokerError
from topology.content.text import count_of
from topology.management.command import BoardCommand, command_error
from topology.management.exit_codes import ExitCode
from topology.management.find_rows import find_topology
from topology.models import Topology
from topology.operations.ownership import Refusal

UNKNOWN = (
    "Delayboard did not record the others. The migration reads the due time of each from the "
    "message when it moves it."
)


class Command(BoardCommand):
    help = (
        "Move the messages that wait in delay levels or hold queues to other delay levels, with "
        "the remaining delays. Exits with 0 when the source is empty, with 3 when messages remain."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", help="the topology's slug, as in its page's address")
        parser.add_argument(
            "target", help="the slug of a delay levels topology, on the same or another broker"
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="show when each message would arrive, move nothing",
        )
        parser.add_argument(
            "--take-undated",
            action="store_true",
            help="move messages without a known due time to the queue of malformed messages; "
            "without it they remain in the source, which delivers them",
        )
        add_confirmation(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        source, target = find_topology(given["source"]), find_topology(given["target"])
        try:
            if given["dry_run"]:
                self._show(source, target)
                return
            brokers = list(dict.fromkeys([source.broker, target.broker]))
            for broker in brokers:
                others = [one for one in brokers if one != broker and one.is_production]
                call = " ".join(f"--confirm “{one.name}”" for one in others)
                if refusal := unconfirmed(broker, given, call):
                    raise CommandError(f"Nothing was moved. {refusal}")
            refuse_unfit(source, target)
        except (Refusal, BrokerError) as error:
            raise command_error(error, "Nothing was moved. ") from error
        try:
            stop = until_stopped()
            owner = work.name_process()
            tally = migrate(
                source,
                target,
                owner=owner,
                takes_undated=given["take_undated"],
                is_stopping=stop.is_set,
            )
        except (Refusal, BrokerError, work.Stopped) as error:
            raise command_error(error, "The migration did not finish. ") from error
        self.stdout.write(
            f"{count_of(tally.moved, 'message')} moved, {tally.doubled} of them marked as possibly "
            f"duplicated; {tally.malformed} malformed."
        )
        if tally.malformed:
            self.stdout.write(f"The malformed messages are in “{malformed_queue(source)}”.")
        if tally.is_empty:
            return
        if tally.remaining:
            self.stderr.write(
                f"{count_of(tally.remaining, 'message', 'remains')}. {tally.why_remaining} "
                "Solve the cause before you run the command again: each attempt counts as a "
                "delivery, and quorum queues drop a message after 20."
            )
        elif tally.unacknowledged:
            self.stderr.write(tally.unacknowledged)
        else:
            self.stderr.write(
                "The migration is paused, and messages remain. Run the command again to continue."
            )
        if tally.undated and not given["take_undated"]:
            self.stderr.write(
                "--take-undated moves messages without a known due time to "
                f"“{malformed_queue(source)}”."
            )
        sys.exit(ExitCode.PARTLY)

    def _show(self, source: Topology, target: Topology) -> None:
        found = check(source, target, datetime.now(UTC))
        for number, step in enumerate(found.steps, 1):
            self.stdout.write(f"{number}. {step.text} [{step.state}] {step.known}")
        self.stdout.write("Known messages (their due times do not change):")
        for line in found.lines:
            problem = f"  not moved: {line.problem}" if line.problem else ""
            self.stdout.write(
                f"  {line.destination}: {line.number}, due {line.first_due_at:%Y-%m-%d %H:%M:%S} "
                f"to {line.last_due_at:%Y-%m-%d %H:%M:%S}{problem}"
            )
        if found.obstacle:
            self.stdout.write(found.obstacle)
            return
        self.stdout.write("Messages by queue, in the order in which they are moved:")
        for one in found.queues:
            before = f"{one.due_before:%Y-%m-%d %H:%M:%S}"
            self.stdout.write(f"  {one.queue}: {one.number}, due before {before}")
        self.stdout.write(f"{found.waiting} messages wait, {found.known} of them are known.")
        if found.known < found.waiting:
            self.stdout.write(UNKNOWN)
