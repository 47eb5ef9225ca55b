"""Adds an export's lines to the parked messages of a broker, each only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from django.db import IntegrityError, transaction

from analytics.events import clean
from delayboard.dead_letters import discard
from delayboard.dead_letters.parked import store
from delayboard.dead_letters.parked.store import change_parked_messages
from delayboard.dead_letters.transfer.parse_lines import (
    Imported,
    LineError,
    number_lines,
    read_line,
)
from delayboard.dead_letters.transfer.serialize import uid_of
from delayboard.models import MessageGroup, ParkedMessage, ParkedState
from topology import audit
from topology.models import Broker

# Lines, and bytes of them, in one transaction.
CHUNK = 200
CHUNK_BYTES = 8_000_000
MOST_REPORTED = 20


@dataclass
class Tally:
    """`wrong` has the number and reason of the first MOST_REPORTED lines that were skipped."""

    lines: int = 0
    added: int = 0
    known: int = 0
    malformed: int = 0
    wrong: list[tuple[int, str]] = field(default_factory=list)

    @property
    def summary(self) -> str:
        return (
            f"{self.lines} lines: {self.added} added, {self.known} already stored, "
            f"{self.malformed} skipped."
        )

    def exclude(self, number: int, sentence: str) -> None:
        self.malformed += 1
        if len(self.wrong) < MOST_REPORTED:
            self.wrong.append((number, sentence))


def import_messages(
    user: Any,
    broker: Broker,
    name: str,
    lines: Iterable[bytes],
    report: Callable[[int, str], None] = lambda number, sentence: None,
) -> Tally:
    """Import lines from the file `name`; `report` receives each skipped one. After a kill, another
    import of the same file continues.
    """
    tally = Tally()
    details: dict[str, int] = {}
    with audit.recorded(
        user, "parked messages imported", broker=broker, what=name, details=details
    ):
        for chunk in _split_chunks(_read(lines, tally, report)):
            try:
                added = _write(user, broker, chunk)
            except IntegrityError:
                # A body that nobody had any more was deleted while a message was about to have it.
                added = _write(user, broker, chunk)
            tally.added += added
            tally.known += len(chunk) - added
            details |= {"lines": tally.lines, "added": tally.added, "malformed": tally.malformed}
        details |= {"lines": tally.lines, "added": tally.added, "malformed": tally.malformed}
    return tally


def _read(
    lines: Iterable[bytes], tally: Tally, report: Callable[[int, str], None]
) -> Iterator[tuple[Imported, int]]:
    """The messages, each with the length of its line."""
    for number, line in number_lines(lines):
        tally.lines += 1
        try:
            yield read_line(line), len(line)
        except LineError as error:
            tally.exclude(number, str(error))
            report(number, str(error))


def _split_chunks(read: Iterator[tuple[Imported, int]]) -> Iterator[list[Imported]]:
    chunk: list[Imported] = []
    size = 0
    for one, length in read:
        chunk.append(one)
        size += length
        if len(chunk) == CHUNK or size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@transaction.atomic
def _write(user: Any, broker: Broker, chunk: Sequence[Imported]) -> int:
    """Returns how many were added; the others exist already."""
    # One import at a time: what another one just added would not be seen.
    Broker.objects.select_for_update(no_key=True).get(pk=broker.pk)
    known = _find_known(broker, chunk)
    fresh: list[Imported] = []
    for one in chunk:
        if one.uid not in known:
            known.add(one.uid)
            fresh.append(one)
    discarded: list[int] = []
    replayed: list[int] = []
    for (queue, parked_at), group in groupby(fresh, key=lambda one: (one.queue, one.parked_at)):
        some = list(group)
        at = min(parked_at, datetime.now(UTC))
        rows = store.put(broker, queue, [one.message for one in some], at=at, by=user)
        for row, one in zip(rows, some, strict=True):
            row.imported_uid = one.uid
            if one.state == ParkedState.DISCARDED:
                discarded.append(row.pk)
            if one.state == ParkedState.REPLAYED:
                replayed.append(row.pk)
            _annotate(row.pk, one)
        ParkedMessage.objects.bulk_update(rows, ["imported_uid"])
    if discarded:
        discard.change_these(user, broker, discard.DISCARD, discarded)
    if replayed:
        now = datetime.now(UTC)
        change_parked_messages(
            replayed, (ParkedState.PARKED,), ParkedState.REPLAYED, by=user, at=now
        )
    return len(fresh)


def _find_known(broker: Broker, chunk: Sequence[Imported]) -> set[str]:
    """Those that were imported before, and those that were parked here themselves."""
    uids = {one.uid for one in chunk}
    of_broker = ParkedMessage.objects.filter(broker=broker)
    imported = of_broker.filter(imported_uid__in=uids)
    known = set(imported.values_list("imported_uid", flat=True))
    local = [one.local_id for one in chunk if one.local_id is not None]
    rows = of_broker.filter(pk__in=local, imported_uid="").defer("properties")
    return known | {uid_of(row) for row in rows}


def _annotate(pk: int, one: Imported) -> None:
    """What people wrote about its group, where nobody did here."""
    if one.note or one.link:
        group = MessageGroup.objects.filter(parked_messages=pk, note="", link="")
        # Only what a browser may open.
        is_link = one.link.startswith(("https://", "http://")) and len(one.link) <= 500
        group.update(note=clean(one.note), link=one.link if is_link else "")
