"""What the commands that act on one topology share: arguments, output and exit codes."""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser

from topology.content.text import count_of, visible
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_topology
from topology.management.server import ServedCommand, Server
from topology.models import State, Topology
from topology.provisioning.edit import Removal
from topology.provisioning.plan import Plan, title
from topology.provisioning.replacement import Replacement

EXIT_CODES = "1 if Delayboard refuses, 2 if the input is wrong or the broker does not answer."
_SIGNS = {"create": "+", "present": "=", "conflict": "≠"}


@dataclass(frozen=True)
class Result:
    """What a command prints: lines for a person, or fields of a JSON object."""

    is_good: bool
    lines: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


class TopologyCommand(ServedCommand):
    """Exits with ExitCode.NO for a result that is not good.

    `operation` is the method and the name of the operation of the API.
    """

    operation: str

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topology", help="the topology's slug, as in the page's address")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def add_confirmation(self, parser: CommandParser, dry_run: str, confirm: str) -> None:
        """Add the options for confirmation to a command that changes the broker."""
        parser.add_argument("--dry-run", action="store_true", help=dry_run)
        parser.add_argument("--confirm", default="", metavar="NAME", help=confirm)

    @abstractmethod
    def act(self, topology: Topology, options: Mapping[str, Any]) -> Result:
        """`user` of the options is who acts, by default Delayboard itself.

        Raises Refusal, BrokerError, ParamsError and BadInput.
        """

    def make_document(self, topology: Topology, result: Result) -> dict[str, Any]:
        """What `--json` prints, and the API answers."""
        head = {
            "topology": topology.slug,
            "broker": topology.broker.slug,
            "state": topology.state,
            "is_good": result.is_good,
            "sentences": list(result.lines),
        }
        return {**head, **result.fields}

    def work(self, options: Mapping[str, Any]) -> None:
        topology = find_topology(options["topology"])
        self._print(self.make_document(topology, self.act(topology, options)), options)

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        method, name = self.operation.split()
        path = f"topologies/{quote(options['topology'], safe='')}/{name}"
        flags = ("dry_run", "without_tap", "replace")
        values = {flag: "true" for flag in flags if options.get(flag)}
        self._print(server.call(method, path, values, self.make_body(options)), options)

    def make_body(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What is sent to the API. Raises BadInput."""
        return {"confirm": options["confirm"]} if "confirm" in options else {}

    def _print(self, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(document, indent=2, ensure_ascii=False))
        else:
            for line in document["sentences"]:
                self.stdout.write(visible(line))
        if not document["is_good"]:
            sys.exit(ExitCode.NO)


def refuse_deleted(topology: Topology) -> None:
    """Raises BadInput."""
    if topology.state == State.DELETED:
        raise BadInput(f"The topology “{topology.slug}” is deleted. Create a new topology.")


def plan_lines(plan: Plan) -> Iterable[str]:
    """The changes of a plan, objects that exist only as a number."""
    for change in plan.changes:
        if change.sign != "present":
            yield f"{_SIGNS[change.sign]} {change.title}"
        for one in change.differences:
            yield f"    {one.name}: planned {one.wanted or '–'}, in the broker {one.found or '–'}"
    yield (
        f"{count_of(len(plan.changes), 'object')}: {len(plan.select('create'))} to create, "
        f"{len(plan.select('conflict'))} in conflict, {len(plan.select('present'))} in sync."
    )


def plan_fields(plan: Plan) -> list[dict[str, Any]]:
    """The same as JSON, all objects."""
    return [
        {
            "sign": change.sign,
            "object": list(change.object.identity),
            "title": change.title,
            "differences": [
                {"name": one.name, "planned": one.wanted, "found": one.found}
                for one in change.differences
            ],
        }
        for change in plan.changes
    ]


def replacement_lines(found: Iterable[Replacement | Removal]) -> Iterable[str]:
    """The steps of each replacement of a queue, or the reason against it."""
    for one in found:
        if one.refusal:
            yield one.refusal
            continue
        verb = "deleted" if isinstance(one, Removal) else "replaced"
        yield f"“{one.queue.name}” can be {verb}:"
        yield from (f"    {number}. {step}" for number, step in enumerate(one.steps, start=1))


def replacement_fields(found: Iterable[Replacement | Removal]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [
        {
            "queue": one.queue.name,
            "messages": one.messages,
            "refusal": one.refusal,
            "steps": [] if one.refusal else list(one.steps),
        }
        for one in found
    ]


def object_fields(objects: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"object": list(obj.identity), "title": title(obj)} for obj in objects]
