"""Lists every chain of delay queues of a broker or of exported definitions."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from topology.content.text import visible
from topology.management.command import BoardCommand
from topology.management.input_file import choose_vhost, read_snapshots
from topology.provisioning.recognition import describe_chains


class Command(BoardCommand):
    help = (
        "List the delays of a broker or of exported definitions, whoever declared them: where "
        "messages enter, how long they wait, where they arrive, and what Delayboard can observe. "
        "Exit code: 0, or 2 if the input cannot be read."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "source", help="a file of definitions, - for standard input, or a broker's slug"
        )
        parser.add_argument("--vhost", help="list only this virtual host of the file")
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *args: Any, **options: Any) -> None:
        snapshots = choose_vhost(read_snapshots(options["source"]), options["vhost"])
        found = {vhost: describe_chains(one) for vhost, one in snapshots.items()}
        if options["json"]:
            chains = [{"vhost": vhost, **one} for vhost, all in found.items() for one in all]
            self.stdout.write(json.dumps({"chains": chains}, indent=2, ensure_ascii=False))
            return
        for vhost, documents in found.items():
            if len(found) > 1:
                self.stdout.write(visible(f"Virtual host {vhost}"))
            if not documents:
                self.stdout.write("No queue delays messages.")
            for one in documents:
                how = "with differences" if one["differences"] else "as Delayboard declares it"
                pattern = f" ({one['pattern']}, {how})" if one["pattern"] else ""
                self.stdout.write(visible(f"{one['name']}{pattern}: {one['phrase']}"))
                for sentence in (*one["differences"], *one["obstacles"]):
                    self.stdout.write(visible(f"  {sentence}"))
