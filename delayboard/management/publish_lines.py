"""Publishing from a file in a command: its options, what it prints, its exit code."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from delayboard.management.confirmation import unconfirmed
from delayboard.publishing.file_message import PLAIN, read_mapping
from delayboard.publishing.publish_file import FileReader, Verdict, publish_file, try_file
from delayboard.publishing.publish_job import HIGHEST_RATE
from delayboard.worker.supervise import until_stopped
from topology.broker.errors import BrokerError
from topology.management.command import command_error
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_topology
from topology.operations.ownership import Refusal

NOTHING = "Nothing was published. "
# Results whose lines a run prints; a dry run prints all.
PRINTED = ("refused", "malformed", "unknown", "lost")
WORDS = {"unknown": "possibly published", "known": "published before"}


def publish_lines(given: Mapping[str, Any], report: Callable[[str, str], None]) -> None:
    """`report` gets a word and a sentence.

    Raises CommandError, and ends the process with the exit code of a part that was done.
    """
    rate = HIGHEST_RATE if given["rate"] is None else given["rate"]
    if not 0 < rate <= HIGHEST_RATE:
        raise BadInput(f"{NOTHING}--rate must be more than 0 and at most {HIGHEST_RATE}.")
    if not given["topology"]:
        raise BadInput(f"{NOTHING}Use --topology with the slug of delay levels.")
    topology, path = find_topology(given["topology"]), Path(given["file"])
    if not given["dry_run"] and (refusal := unconfirmed(topology.broker, given)):
        raise CommandError(f"{NOTHING}{refusal}")
    marks = Counter[str]()
    destinations = defaultdict[str, Counter[str]](Counter)

    def take(verdict: Verdict) -> None:
        marks[verdict.mark] += 1
        destinations[verdict.target][verdict.mark] += 1
        if given["dry_run"] or verdict.mark in PRINTED or verdict.is_repeated:
            to = f" for “{verdict.target}”" if verdict.target else ""
            word = f"{WORDS.get(verdict.mark, verdict.mark)}: " if verdict.mark in PRINTED else ""
            report(verdict.mark, f"line {verdict.line}{to}: {word}{verdict.sentence}")

    stop, why = until_stopped(), ""
    try:
        mapping = read_mapping(given["mapping"]) if given["mapping"] else PLAIN
        with path.open("rb") as file:
            reader = FileReader(topology, file, mapping)
            if given["dry_run"]:
                try_file(reader, take)
            else:
                why = publish_file(None, reader, path.name, take, rate=rate, stop=stop)
    except (Refusal, BrokerError) as error:
        raise command_error(error, NOTHING) from error
    except OSError as error:
        raise BadInput(f"{NOTHING}“{path}” cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadInput(f"{NOTHING}{error}") from error
    for target, counted in sorted(destinations.items()):
        new = ", bound by this" if target in reader.destinations.unbound else ""
        report("destination", f"{target or 'malformed lines'}: {_describe(counted)}{new}")
    report("total", f"{marks.total()} lines: {_describe(marks)}")
    if stop.is_set():
        sys.exit(ExitCode.STOPPED)
    published = marks["due"] + marks["waits"]
    if why and not published:
        raise CommandError(why)
    if why or any(marks[one] for one in PRINTED):
        report("stopped", why or "Publish the same file again to try again what is not published.")
        sys.exit(ExitCode.PARTLY)


def _describe(counted: Mapping[str, int]) -> str:
    return ", ".join(
        f"{number} {WORDS.get(mark, mark)}" for mark, number in sorted(counted.items())
    )
