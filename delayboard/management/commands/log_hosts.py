from __future__ import annotations

from argparse import ArgumentParser
from datetime import date
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from analytics import shared_log
from analytics.log import LogError, name_of, take_lock
from analytics.models import LogHost
from analytics.recorder.follow import Follower
from analytics.storage import StorageError
from delayboard.now.system import background_tasks_of, list_hosts
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput
from topology.models import Broker


class Command(BoardCommand):
    help = (
        "List the hosts that record, what each records, and what of its event log others cannot "
        "read yet. Exit code 2: no such host, or its worker runs."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        choice = parser.add_mutually_exclusive_group()
        choice.add_argument(
            "--leave",
            action="store_true",
            help="before this host is removed: index and send the rest of its log, then forget it",
        )
        choice.add_argument(
            "--forget", metavar="HOST", help="forget a host that does not come back"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["leave"]:
            self._leave()
        elif options["forget"]:
            self._forget(options["forget"])
        else:
            self._list()

    def _list(self) -> None:
        lines = list_hosts(background_tasks_of(list(Broker.objects.all())))
        for line in lines:
            self.stdout.write(
                f"{line.host.name}: {line.status.lower()}; recorders: {len(line.records)}; not in "
                f"the list yet: {line.unread}; not at LOG_URL yet: {line.unsent}"
            )
        if not lines:
            self.stdout.write("A single host records, and LOG_URL is not set.")

    def _leave(self) -> None:
        """Raises BadInput while a worker follows the log, CommandError when it cannot be sent."""
        log = settings.EVENT_LOG
        try:
            with take_lock(log, "index") as index, take_lock(log, "sending") as sending:
                if not index or not sending:
                    raise BadInput("The worker of this host runs. Stop it first.")
                follower = Follower(log)
                while follower.step():
                    pass
                unsent = shared_log.find_unsent(log, date.min) if settings.SHARED_LOG_URL else []
                for one in unsent:
                    shared_log.send(log, one, is_over=True)
                LogHost.objects.filter(name=name_of(log)).delete()
        except (LogError, StorageError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"The event log of this host is indexed; {len(unsent)} hours were sent.")

    def _forget(self, name: str) -> None:
        host = LogHost.objects.filter(name=name).first()
        if host is None:
            raise BadInput(f"There is no host {name}.")
        if not host.has_ended and not host.is_silent:
            raise BadInput(f"The worker on {name} runs. Stop it first.")
        host.delete()
        self.stdout.write(f"Delayboard has forgotten {name}.")
