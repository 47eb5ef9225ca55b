from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from delayboard.backup.contents import BackupError
from delayboard.backup.restore import restore
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput


class Command(BoardCommand):
    help = (
        "Restore a backup of this or an earlier version into an empty site. Replays that were "
        "running are paused. Stop the site and the worker before. Exit code 2: refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of a backup")
        parser.add_argument(
            "--replace",
            action="store_true",
            help="replace the site that is there: its tables are dropped, its files set aside",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            found = restore(
                options["folder"].absolute(),
                is_replacing=options["replace"],
                report=self.stdout.write,
            )
        except BackupError as error:
            raise BadInput(str(error)) from error
        self.stdout.write(
            f"Restored what Delayboard had at {found.moment:%Y-%m-%d %H:%M:%S} UTC. What it "
            "parked, sent or changed later is not known here."
        )
        self.stdout.write(
            f"Paused replays: {found.replays}; paused migrations: {found.migrations}; ended "
            f"publish jobs: {found.publish_jobs}; marked scheduled changes: {found.changes}."
        )
        if found.unknown:
            self.stderr.write(
                f"This version has no {', '.join(found.unknown)}, which the backup has. "
                "On PostgreSQL their rows are not restored. Keep the backup if you need them."
            )
        if found.has_other_keys:
            self.stderr.write(
                "The keys of the backup are others than those of this process. Unset SECRET_KEY "
                "and CREDENTIAL_KEYS, or set those of the lost machine."
            )
