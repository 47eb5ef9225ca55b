from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from delayboard.backup.contents import BackupError
from delayboard.backup.create import back_up
from topology.management.command import BoardCommand


class Command(BoardCommand):
    help = (
        "Back up the database, the keys, this host's event log and its Parquet into a new folder. "
        "Delayboard may run. Exit code 1: there is no backup."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, metavar="DIR", help="a folder that does not exist")

    def handle(self, *args: Any, **options: Any) -> None:
        folder: Path = options["folder"].absolute()
        try:
            backup = back_up(folder, self.stdout.write)
        except BackupError as error:
            raise CommandError(str(error)) from error
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self.stdout.write(
            f"{folder} has the backup of {backup.moment:%Y-%m-%d %H:%M:%S} UTC, {size:,} bytes. It "
            "contains secrets: keep it like the keys."
        )
