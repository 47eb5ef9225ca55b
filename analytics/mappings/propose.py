"""PURE: the first records of an unknown log -> a proposed mapping, as a few choices and as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analytics.events import Kind
from analytics.mappings.mapping import Format, Record
from analytics.mappings.values import TIMES, UNITS_US

TIME_NAMES = ("@timestamp", "timestamp", "recorded_at", "time", "ts", "datetime", "date", "asctime")
ID_NAMES = ("message_id", "messageId", "msg_id", "uuid", "jid", "task_id", "job_id", "id")
QUEUE_NAMES = ("queue", "queue_name", "routing_key", "destination", "topic", "channel")
EVENT_NAMES = ("event", "event.action", "event_type", "action", "type", "status", "state")
DELAY_NAMES = ("delay_ms", "ttl_ms", "delay", "ttl", "countdown", "delay_seconds", "delay_s")
# Word in the name of an event -> its kind; the first that is in it decides.
WORDS: tuple[tuple[str, Kind], ...] = (
    ("cancel", "cancelled"),
    ("revok", "cancelled"),
    *((word, "died") for word in ("dead", "died", "fail", "drop", "reject")),
    *((word, "scheduled") for word in ("schedul", "delay", "enqueue", "sent", "retr", "publish")),
    *(
        (word, "delivered")
        for word in ("deliver", "receiv", "dequeue", "start", "consum", "process")
    ),
)
MOST_VALUES = 20
DEPTH = 4
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Choices:
    """The few things that most mappings say. `kinds` has a kind, or "" for none, by the value of
    the field `event`; without that field every record is `scheduled`.
    """

    format: Format
    time: str = ""
    time_form: str = "iso"
    zone: str = "UTC"
    message_id: str = ""
    queue: str = ""
    delay: str = ""
    delay_unit: str = "ms"
    event: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)

    def to_toml(self, title: str) -> str:
        """The mapping as text, that `parse` reads."""
        lines = [f"title = {_quote(title)}", f"format = {_quote(self.format)}", "", "[fields]"]
        form = "" if self.time_form == "iso" else f", time = {_quote(self.time_form)}"
        zone = f", zone = {_quote(self.zone)}" if self.time_form == "iso" and self.zone else ""
        lines.append(f"recorded_at = {{ from = {_quote(self.time)}{form}{zone} }}")
        if self.queue:
            lines += [f"{name} = {_quote(self.queue)}" for name in ("topology", "queue")]
            lines.append(f"destination = {_quote(self.queue)}")
        if self.message_id:
            lines.append(f"message_id = {_quote(self.message_id)}")
        if self.delay:
            unit = f", unit = {_quote(self.delay_unit)}"
            lines.append(
                f"requested_delay_ms = {{ from = {_quote(self.delay)}{unit}, default = 0 }}"
            )
        by_kind: dict[str, list[str]] = {}
        for value, kind in self.kinds.items():
            by_kind.setdefault(kind, []).append(value)
        for kind in filter(None, by_kind) if self.event else ["scheduled"]:
            lines += ["", "[[events]]", f"kind = {_quote(kind)}"]
            if self.event:
                values = ", ".join(map(_quote, by_kind[kind]))
                lines.append(f"when = {{ {_key(self.event)} = [{values}] }}")
            if kind == "died":
                lines.append('fields = { death_reason = { value = "rejected" } }')
        return "\n".join(lines) + "\n"


def guess(records: Sequence[Record], form: Format) -> Choices:
    """The choices by the names and values of the first records."""
    values: dict[str, list[Any]] = {}
    for record in records:
        for path, value in _leaves(record):
            values.setdefault(path, []).append(value)
    event = _choose(values, EVENT_NAMES)
    found = list(dict.fromkeys(str(value) for value in values.get(event, ())))[:MOST_VALUES]
    time, delay = _choose(values, TIME_NAMES), _choose(values, DELAY_NAMES)
    first = values[time][0] if time else ""
    return Choices(
        format=form,
        time=time,
        time_form=guess_time(first),
        message_id=_choose(values, ID_NAMES),
        queue=_choose(values, QUEUE_NAMES),
        delay=delay,
        delay_unit="ms" if delay.endswith("_ms") else "s",
        event=event,
        kinds={
            value: next((kind for word, kind in WORDS if word in value.lower()), "")
            for value in found
        },
    )


def list_paths(records: Sequence[Record]) -> list[str]:
    """The paths of all values of these records, each once, in their order."""
    return list(dict.fromkeys(path for record in records for path, _ in _leaves(record)))


def guess_time(value: Any) -> str:
    """The form of a moment: by its digits, as 2001 to 2286 have ten in seconds."""
    digits = str(value).split(".", maxsplit=1)[0]
    if not digits.isdecimal():
        return "iso"
    forms = {10: "s", 13: "ms", 16: "us", 19: "ns"}
    return forms.get(len(digits), "s")


def _choose(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """The path that is, or ends with, the first of these names."""
    for name in names:
        if name in values:
            return name
    return next((p for name in names for p in values if p.endswith(f".{name}")), "")


def _leaves(value: Any, path: str = "", depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and depth:
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else str(name), depth - 1)
    elif path and value is not None and not isinstance(value, list | Mapping):
        yield path, value


def _quote(text: str) -> str:
    """Write a basic string of TOML, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(path: str) -> str:
    return path if _PLAIN_KEY.fullmatch(path) else _quote(path)


TIME_FORMS, DELAY_UNITS = TIMES, tuple(UNITS_US)
