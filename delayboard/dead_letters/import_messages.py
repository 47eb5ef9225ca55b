"""Adds an export's lines to the parked messages of a broker, each only once.

Lines are read with distrust: a message to write, or what is wrong.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import orjson
from django.db import IntegrityError, transaction

from analytics.events import clean
from delayboard.dead_letters import discard
from delayboard.dead_letters.export_messages import KIND, VERSION, uid_of
from delayboard.dead_letters.parked import store
from delayboard.dead_letters.parked.store import change_parked_messages
from delayboard.models import MessageGroup, ParkedMessage, ParkedState
from topology import audit
from topology.broker.properties.read import read_properties
from topology.message import Message
from topology.models import Broker

# Lines, and bytes of them, in one transaction.
CHUNK = 200
CHUNK_BYTES = 8_000_000
MOST_REPORTED = 20
# Longest line: a body of 128 MiB, RabbitMQ's maximum, in base64, with the fields around it.
LONGEST_LINE = 200_000_000
# Most bytes of properties: their frame is 128 kB by default and can be made larger.
MOST_PROPERTIES = 1_000_000
LONGEST_NAME = 255
LONGEST_UID = 64
FIRST_YEAR = datetime(1000, 1, 1, tzinfo=UTC)


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
        for chunk in _split_chunks(_read_lines(lines, tally, report)):
            try:
                added = _write_chunk(user, broker, chunk)
            except IntegrityError:
                # A body that nobody had any more was deleted while a message was about to have it.
                added = _write_chunk(user, broker, chunk)
            tally.added += added
            tally.known += len(chunk) - added
            details |= {"lines": tally.lines, "added": tally.added, "malformed": tally.malformed}
        details |= {"lines": tally.lines, "added": tally.added, "malformed": tally.malformed}
    return tally


def _read_lines(
    lines: Iterable[bytes], tally: Tally, report: Callable[[int, str], None]
) -> Iterator[tuple[Imported, int]]:
    """The messages, each with the length of its line; lines are counted from 1."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
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
def _write_chunk(user: Any, broker: Broker, chunk: Sequence[Imported]) -> int:
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
    """The ids of messages that were imported before, or that were parked here."""
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


class LineError(ValueError):
    """The line is not a message; the sentence says why."""


@dataclass(frozen=True)
class Imported:
    """`uid` names it wherever it is imported; `local_id` is what it was called where it was
    parked, if that was here."""

    uid: str
    queue: str
    message: Message
    parked_at: datetime
    state: ParkedState
    note: str
    link: str

    @property
    def local_id(self) -> int | None:
        number = self.uid.partition("-")[0]
        return int(number) if number.isdecimal() and len(number) <= 18 else None


def read_line(line: bytes) -> Imported:
    """Raises LineError."""
    if len(line) > LONGEST_LINE:
        raise LineError("The line is longer than any exported line.")
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise LineError(f"The line is not JSON: {error}.") from error
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise LineError("The line is not an exported dead letter.")
    if values.get("v") != VERSION:
        raise LineError(f"The version {_shorten(values.get('v'))} is not {VERSION}.")
    if values.get("masked") is not False:
        raise LineError(
            "Redaction rules hid parts of the message in the export, so it is incomplete."
        )
    message = Message(
        _name(values, "exchange"),
        _name(values, "routing_key"),
        read_properties(_properties(values)),
        _body(values),
        redelivered=values.get("redelivered") is True,
    )
    if values.get("content_id", message.content_id) != message.content_id:
        raise LineError("The content does not match the content_id, so the line was changed.")
    group = values.get("group")
    about = group if isinstance(group, dict) else {}
    return Imported(
        uid=_uid(values, line),
        queue=_name(values, "queue", is_needed=True),
        message=message,
        parked_at=_moment(values, "parked_at"),
        state=_state(values),
        note=_text(about, "note"),
        link=_text(about, "link"),
    )


def _shorten(value: object) -> str:
    """Returns at most 40 characters of a value, quoted for a sentence."""
    if isinstance(value, (dict, list)):
        return "(a list or object)"
    text = clean(value if not isinstance(value, str) else value[:40])
    return f"“{text[:40]}”"


def _uid(values: Mapping[str, Any], line: bytes) -> str:
    uid = values.get("uid")
    if uid is None:
        return hashlib.sha256(line.strip()).hexdigest()
    if not isinstance(uid, str) or not uid or len(uid) > LONGEST_UID or not uid.isascii():
        raise LineError(f"The uid is not a text of at most {LONGEST_UID} ASCII characters.")
    if not uid.isprintable():
        raise LineError("The uid contains characters that are not printable.")
    return uid


def _name(values: Mapping[str, Any], name: str, *, is_needed: bool = False) -> str:
    text = _text(values, name)
    if len(text.encode()) > LONGEST_NAME:
        raise LineError(f"The {name} is longer than {LONGEST_NAME} bytes.")
    if is_needed and not text:
        raise LineError(f"The line has no {name}.")
    return text


def _text(values: Mapping[str, Any], name: str) -> str:
    text = values.get(name, "")
    if not isinstance(text, str):
        raise LineError(f"The {name} is not a text.")
    return text


def _properties(values: Mapping[str, Any]) -> bytes:
    if "properties_base64" not in values:
        raise LineError("The line has no properties_base64.")
    raw = _bytes(values, "properties_base64")
    if len(raw) > MOST_PROPERTIES:
        raise LineError("The properties are larger than an AMQP frame.")
    return raw


def _body(values: Mapping[str, Any]) -> bytes:
    if ("body_text" in values) == ("body_base64" in values):
        raise LineError("The line needs exactly one of body_text and body_base64.")
    if "body_base64" in values:
        return _bytes(values, "body_base64")
    return _text(values, "body_text").encode()


def _bytes(values: Mapping[str, Any], name: str) -> bytes:
    try:
        return b64decode(_text(values, name).encode(), validate=True)
    except binascii.Error as error:
        raise LineError(f"The {name} is not valid base64: {error}.") from error


def _moment(values: Mapping[str, Any], name: str) -> datetime:
    try:
        at = datetime.fromisoformat(_text(values, name))
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise LineError(f"The {name} is not a valid time.") from error
    if at < FIRST_YEAR:
        raise LineError(f"The {name} is before the year 1000.")
    return at


def _state(values: Mapping[str, Any]) -> ParkedState:
    """One that is on its way in a replay there is parked here: this database has no such replay."""
    try:
        state = ParkedState(values.get("state", ParkedState.PARKED))
    except ValueError as error:
        raise LineError(f"The state is not one of {', '.join(ParkedState.values)}.") from error
    is_in_flight = state in (ParkedState.REPLAYING, ParkedState.DELAYED)
    return ParkedState.PARKED if is_in_flight else state
