"""PURE: a mapping (TOML) -> a reader that turns a record of a foreign log into events.

A record is a JSON object: a line of JSON, a row of a table, or the named groups of a pattern. The
page, the command and Spark read records by this module alone. docs/import.md describes the format.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args
from zoneinfo import ZoneInfo

import orjson
import regex

from analytics.events import FIELDS, Kind, MessageEvent, bounded
from analytics.mappings.erlang import read_erlang
from analytics.mappings.values import (
    LONGEST_TEXT,
    NANOSECONDS,
    SPAN,
    TIMES,
    UNITS_US,
    RecordError,
    as_boolean,
    as_counted,
    as_headers,
    as_integer,
    as_milliseconds,
    as_moment,
    as_text,
    in_base64,
)
from topology.content.text import make_encodable

Format: TypeAlias = Literal["json", "csv", "parquet", "text"]
KINDS: tuple[Kind, ...] = ("scheduled", "delivered", "published", "died", "cancelled")
SHIPPED = Path(__file__).parent / "shipped"
# Begin of the ids of events whose log has none; the hash of the record follows.
LOG_ID = "log:"
LONGEST_MAPPING = 100_000
# Fields that only Delayboard itself can state, and no log has.
_OWN = ("v", "kind", "source", "replay_id", "tracking_id", "failures")
_OWN_BYTES = ("body_base64", "properties_base64")
EVENT_FIELDS = tuple(name for name in FIELDS if name not in (*_OWN, *_OWN_BYTES))
# Fields of a line of the tracing plugin, which analytics.importing.staging reads by topologies.
TRACE_FIELDS = (
    *("timestamp", "type", "vhost", "exchange", "queue", "routing_keys", "routed_queues"),
    *("properties", "payload", "user", "connection", "redelivered"),
)
QUALITIES = {
    "no exits": "The log has no deliveries, so lateness is unknown and messages seem to wait.",
    "no ids": "The log has no message ids, so entries and deliveries are paired in their order.",
    "whole seconds": "The log has whole seconds, so lateness is exact to one second only.",
    "no delays": "The log has no delays, so lateness is unknown.",
    "no attempts": "The log has no attempt numbers, so every trip counts as the first.",
    "no queues": "The log does not name the queue of each message.",
    "consumer": "Deliveries are timed when a consumer starts, so lateness includes its backlog.",
    "estimated delivery": "Deliveries are computed from the end of a task and its run time.",
    "ambiguous text": "A payload can imitate a record of this text format.",
    "objects, not messages": "One event stands for a declared delay queue, not for a message.",
}
# Longest search of a pattern: for a text that it nearly matches it can take longer than the age of
# the world.
SEARCH_SECONDS = 5.0
_MISSING = object()
_PLACE = re.compile(r"\{([^{}]+)\}")

Record: TypeAlias = Mapping[str, Any]
Source: TypeAlias = Callable[[Record], Any]
Condition: TypeAlias = Callable[[Record], bool]


class MappingError(ValueError):
    """The mapping cannot be used; the message says which part of it and why."""


class SlowPattern(Exception):
    """A regular expression takes too long for a text; the message has the next step."""


@dataclass(frozen=True)
class Rule:
    """Which records become this kind of event, and the source of each field."""

    kind: Kind
    when: Condition
    fields: Mapping[str, Source]
    origins: Mapping[str, str]
    """What is looked for in a record, by the field."""


@dataclass(frozen=True)
class LogMapping:
    """A parsed mapping. `recognized_by` are fields that a record of this log has.

    `envelope` are fields in which a log shipper puts the record as a text of JSON, `inside` the
    parts of a record that have the fields.

    `items` is the path to the records of a document ("*": each value of an object or list), ""
    where each line is a record. A text record ends where `begins` matches a line, else with its
    line.
    """

    name: str
    title: str
    text: str
    format: Format
    rules: Sequence[Rule]
    recognized_by: Sequence[str] = ()
    envelope: Sequence[str] = ()
    inside: Sequence[str] = ()
    items: str = ""
    separator: str = ","
    columns: Sequence[str] = ()
    pattern: regex.Pattern[str] | None = None
    begins: regex.Pattern[str] | None = None
    trace: Mapping[str, Source] | None = None
    quality: Sequence[str] = ()

    def recognizes(self, record: Record) -> bool:
        """Whether a record has all fields that one of this log has."""
        opened = self.open(record)
        names = self.recognized_by
        return bool(names) and all(has_value(opened, n) or has_value(record, n) for n in names)

    def open(self, record: Record) -> Record:
        """The record without what a log shipper wrapped around it, and its part `inside`."""
        for path in self.envelope:
            inner = find_value(record, path)
            if isinstance(inner, str) and inner.lstrip().startswith("{"):
                try:
                    inner = orjson.loads(inner)
                except orjson.JSONDecodeError:
                    continue
                if isinstance(inner, Mapping):
                    record = inner
                    break
        for path in self.inside:
            part = find_value(record, path)
            if isinstance(part, list):
                # ServiceControl writes headers as objects of a key and a value.
                pairs = [item for item in part if isinstance(item, Mapping) and "key" in item]
                part = {str(item["key"]): item.get("value") for item in pairs}
            if isinstance(part, Mapping):
                return part
        return record

    def split_text(self, text: str) -> Record:
        """The named groups of a text record. Raises RecordError where the pattern is not in it, and
        SlowPattern.
        """
        assert self.pattern is not None
        if len(text) > LONGEST_TEXT:
            raise RecordError("The record is longer than a mebibyte.")
        found = search(self.pattern, text)
        if found is None:
            raise RecordError("The line does not match the pattern.")
        return {name: value for name, value in found.groupdict().items() if value is not None}

    def read(self, record: Record, defaults: Mapping[str, str]) -> list[MessageEvent]:
        """The events of a record, none where no rule wants it; of what it does not name, `broker`
        and `topology` are `defaults`. Raises RecordError, SlowPattern.
        """
        record = self.open(record)
        return [_make_event(rule, record, defaults) for rule in self.rules if rule.when(record)]

    def read_trace(self, record: Record) -> dict[str, Any]:
        """The record as a line of the tracing plugin."""
        assert self.trace is not None
        record = self.open(record)
        found = {name: _field(name, source, record) for name, source in self.trace.items()}
        return {name: value for name, value in found.items() if value is not _MISSING}


def find_value(record: Any, path: str) -> Any:
    """The value at a path such as `log.level`, whose names may contain dots themselves; _MISSING
    where there is none, or null.
    """
    if isinstance(record, Mapping):
        if path in record:
            return _MISSING if record[path] is None else record[path]
        at = path.find(".")
        while at > 0:
            if path[:at] in record:
                found = find_value(record[path[:at]], path[at + 1 :])
                if found is not _MISSING:
                    return found
            at = path.find(".", at + 1)
    elif isinstance(record, Sequence) and not isinstance(record, str | bytes):
        name, _, rest = path.partition(".")
        if name.isdecimal() and len(name) < 6 and int(name) < len(record):
            item = record[int(name)]
            return find_value(item, rest) if rest else (_MISSING if item is None else item)
    return _MISSING


def has_value(record: Any, path: str) -> bool:
    return find_value(record, path) is not _MISSING


# --- From a record to an event


def _make_event(rule: Rule, record: Record, defaults: Mapping[str, str]) -> MessageEvent:
    found: dict[str, Any] = {}
    for name, source in rule.fields.items():
        value = _field(name, source, record)
        if value is not _MISSING:
            found[name] = value
    added = {name: text for name, text in defaults.items() if text and not found.get(name)}
    found |= added
    for name in ("recorded_at", "broker", "topology"):
        if not found.get(name):
            raise RecordError(_explain_missing(name, rule))
    recorded_at = found["recorded_at"]
    due_at = found.pop("due_at", None)
    if due_at and not found.get("requested_delay_ms"):
        began_at = recorded_at if rule.kind == "scheduled" else found.get("published_at")
        if began_at:
            found["requested_delay_ms"] = max((due_at - began_at) // timedelta(milliseconds=1), 0)
    delay = timedelta(milliseconds=found.get("requested_delay_ms", 0))
    if rule.kind == "scheduled":
        if not delay and due_at is None:
            raise RecordError(_explain_missing("requested_delay_ms", rule))
        found["due_at"] = due_at or recorded_at + delay
    if rule.kind in ("scheduled", "delivered"):
        found.setdefault("attempt", 1)
    if "published_at" in found:
        found.setdefault("published_at_source", "import")
    found.setdefault("caught_up", True)
    # Of another topology that was named beside the log, they are other events.
    place = [defaults.get("broker", ""), *([added["topology"]] if "topology" in added else [])]
    event = MessageEvent(
        event_id=found.pop("event_id", "") or f"{LOG_ID}{_hash_record(record, place)}:{rule.kind}",
        kind=rule.kind,
        source="import",
        **found,
    )
    return event if event.content_id else replace(event, content_id=_content_of(event))


def _explain_missing(name: str, rule: Rule) -> str:
    origin = rule.origins.get(name)
    if origin is None and name in ("broker", "topology"):
        return f"The log does not name its {name}. Name it with --{name}."
    if origin is None:
        return f"The mapping has no source of the field {name}."
    return f"The line has no {origin}, which is the field {name}."


def _content_of(event: MessageEvent) -> str:
    """What entry and exit of a message without an id have in common."""
    place = (event.topology, event.queue, event.routing_key, str(event.requested_delay_ms))
    return hashlib.sha256("\0".join(place).encode("utf-8", "replace")).hexdigest()[:32]


def _hash_record(record: Record, place: Sequence[str]) -> str:
    """The same for a line, a row of a table and a record in an envelope, in whatever order."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    text = orjson.dumps([*place, record], option=options, default=make_encodable)
    return hashlib.sha256(text).hexdigest()[:32]


def _field(name: str, source: Source, record: Record) -> Any:
    try:
        return source(record)
    except RecordError as error:
        raise RecordError(f"The field {name}: {error}") from error
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        raise RecordError(f"The field {name} cannot be read: {error}.") from error


# --- From TOML to a mapping


def shipped_names() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


@cache
def load_shipped(name: str) -> LogMapping:
    """Raises MappingError for a name that is not shipped."""
    if name not in shipped_names():
        raise MappingError(f"The mapping “{name}” does not exist.")
    return parse((SHIPPED / f"{name}.toml").read_text(), name)


def parse(text: str, name: str) -> LogMapping:
    """Read a mapping. Raises MappingError."""
    if len(text) > LONGEST_MAPPING:
        raise MappingError("The mapping is longer than 100,000 characters.")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MappingError(f"The mapping is not TOML: {error}.") from error
    known = {
        "title",
        "about",
        "format",
        "recognized_by",
        "envelope",
        "inside",
        "items",
        "separator",
    }
    known |= {"columns", "pattern", "begins", "reader", "quality", "fields", "events"}
    _refuse_unknown(values, known, "The mapping")
    title, format_ = values.get("title", name), values.get("format", "json")
    if format_ not in get_args(Format):
        raise MappingError(f"The format {format_!r} is none of {', '.join(get_args(Format))}.")
    pattern, begins = _pattern(values, "pattern"), _pattern(values, "begins")
    if (format_ == "text") != (pattern is not None):
        raise MappingError("A pattern belongs to the format text, and no other.")
    if pattern and not pattern.groupindex:
        raise MappingError("The pattern has no named group such as (?P<queue>[^ ]+).")
    is_trace = values.get("reader", "events") == "trace"
    allowed = TRACE_FIELDS if is_trace else EVENT_FIELDS
    shared = _fields(values.get("fields", {}), allowed, "fields")
    rules = [] if is_trace else _rules(values.get("events"), shared, values.get("fields", {}))
    return LogMapping(
        name=name,
        title=str(title),
        text=text,
        format=cast(Format, format_),
        rules=rules,
        recognized_by=_texts(values, "recognized_by"),
        envelope=_texts(values, "envelope"),
        inside=_texts(values, "inside"),
        items=str(values.get("items", "")),
        separator=_separator(values.get("separator", ",")),
        columns=_texts(values, "columns"),
        pattern=pattern,
        begins=begins,
        trace=shared if is_trace else None,
        quality=_quality(_texts(values, "quality"), rules),
    )


@cache
def parse_once(text: str, name: str) -> LogMapping:
    """A parsed mapping, kept for processes that read many records by a few mappings."""
    return parse(text, name)


def _quality(stated: Sequence[str], rules: Sequence[Rule]) -> list[str]:
    unknown = [name for name in stated if name not in QUALITIES]
    if unknown:
        raise MappingError(f"The quality “{unknown[0]}” is none of {', '.join(sorted(QUALITIES))}.")
    found = set(stated)
    if rules:
        if not any(rule.kind == "delivered" for rule in rules):
            found.add("no exits")
        if not all("message_id" in rule.fields for rule in rules) and "no ids" not in found:
            found.add("no ids")
    return [name for name in QUALITIES if name in found]


def _rules(values: Any, shared: Mapping[str, Source], shared_specs: Any) -> list[Rule]:
    if not isinstance(values, list) or not values or not all(isinstance(v, dict) for v in values):
        raise MappingError("The mapping has no [[events]], so no line becomes an event.")
    rules = []
    for number, value in enumerate(values, start=1):
        place = f"[[events]] {number}"
        _refuse_unknown(value, {"kind", "when", "fields"}, place)
        if value.get("kind") not in KINDS:
            raise MappingError(f"{place}: the kind must be one of {', '.join(KINDS)}.")
        fields = {**shared, **_fields(value.get("fields", {}), EVENT_FIELDS, place)}
        if "recorded_at" not in fields:
            raise MappingError(f"{place}: the field recorded_at is missing.")
        specs = {**shared_specs, **value.get("fields", {})}
        origins = {name: _origin(spec) for name, spec in specs.items()}
        when = _condition(value.get("when", {}), place)
        rules.append(Rule(value["kind"], when, fields, origins))
    return rules


def _origin(spec: Any) -> str:
    if isinstance(spec, dict):
        spec = spec.get("from", spec.get("template", "value"))
    return " or ".join(f"`{path}`" for path in _as_list(spec))


def _fields(values: Any, allowed: Sequence[str], place: str) -> dict[str, Source]:
    if not isinstance(values, dict):
        raise MappingError(f"{place}: fields must be a table.")
    for name in values:
        if name not in allowed:
            raise MappingError(f"{place}: {name} is no field. Fields: {', '.join(allowed)}.")
    return {name: _source(name, spec, f"{place}: {name}") for name, spec in values.items()}


_PARTS = {"from", "value", "template", "time", "zone", "unit", "table", "else", "default"}
_PARTS |= {"match", "since", "minus", "add", "erlang", "base64", "list"}


def _source(name: str, spec: Any, place: str) -> Source:
    """Where a field comes from, and how its text is read."""
    if isinstance(spec, str | list):
        spec = {"from": spec}
    if not isinstance(spec, dict):
        raise MappingError(f"{place}: write a path, or a table with from, value or template.")
    _refuse_unknown(spec, _PARTS, place)
    source = _raw(spec, place)
    convert = _conversion(name, spec, place)
    default = spec.get("default", _MISSING)

    def read(record: Record) -> Any:
        value = source(record)
        if value is _MISSING or value == "":
            return _MISSING if default is _MISSING else convert(default, record)
        return convert(value, record)

    return read


def _raw(spec: Mapping[str, Any], place: str) -> Source:
    """The value before it is read as time, number or text."""
    if sum(part in spec for part in ("from", "value", "template")) != 1:
        raise MappingError(f"{place}: exactly one of from, value and template is needed.")
    source: Source
    if "value" in spec:
        source = partial(_constant, spec["value"])
    elif "template" in spec:
        source = _template(str(spec["template"]))
    else:
        given = spec["from"]
        paths = [given] if isinstance(given, str) else given
        if not isinstance(paths, list) or not paths or not all(isinstance(p, str) for p in paths):
            raise MappingError(f"{place}: from must be a path, or a list of paths.")
        source = partial(_first_value, paths)
    return _looked_up(_matched(source, spec, place), spec, place)


def _constant(value: Any, record: Record) -> Any:
    return value


def _first_value(paths: Sequence[str], record: Record) -> Any:
    found = (find_value(record, path) for path in paths)
    return next((value for value in found if value is not _MISSING), _MISSING)


def _matched(source: Source, spec: Mapping[str, Any], place: str) -> Source:
    pattern = _pattern(spec, "match")
    if pattern is None:
        return source
    if pattern.groups != 1:
        raise MappingError(f"{place}: match must have exactly one group.")

    def read(record: Record) -> Any:
        value = source(record)
        found = search(pattern, as_text(value)[:LONGEST_TEXT]) if value is not _MISSING else None
        return found[1] if found and found[1] is not None else _MISSING

    return read


def _looked_up(source: Source, spec: Mapping[str, Any], place: str) -> Source:
    table = spec.get("table")
    if table is None:
        return source
    if not isinstance(table, dict):
        raise MappingError(f"{place}: table must be a table of texts.")
    other = spec.get("else", _MISSING)

    def read(record: Record) -> Any:
        value = source(record)
        if value is _MISSING:
            return value
        found = table.get(as_text(value), other)
        if found is _MISSING:
            raise RecordError(f"{as_text(value)[:80]!r} is not in its table.")
        return found

    return read


def _template(template: str) -> Source:
    """With each {path} replaced; missing where a path has no value."""

    def read(record: Record) -> Any:
        values = {path: find_value(record, path) for path in _PLACE.findall(template)}
        if any(value is _MISSING for value in values.values()):
            return _MISSING
        return _PLACE.sub(lambda place: as_text(values[place[1]]), template)

    return read


def _conversion(name: str, spec: Mapping[str, Any], place: str) -> Callable[[Any, Record], Any]:
    if name in TRACE_FIELDS and name not in EVENT_FIELDS:
        return _of_trace(name, spec)
    kind = FIELDS.get(name, "text")
    if "since" in spec:
        began = _source("recorded_at", spec["since"], f"{place}: since")
        moment = _moment_reader(spec, place)

        def since(value: Any, record: Record) -> Any:
            start = began(record)
            if start is _MISSING:
                return _MISSING
            return max(int((moment(value) - start) / timedelta(milliseconds=1)), 0)

        return since
    if kind.startswith("moment"):
        moment = _moment_reader(spec, place)
        if "minus" not in spec:
            return lambda value, record: moment(value)
        less = _source("requested_delay_ms", spec["minus"], f"{place}: minus")

        def earlier(value: Any, record: Record) -> Any:
            ms = less(record)
            return moment(value) - timedelta(milliseconds=0 if ms is _MISSING else ms)

        return earlier
    if name == "headers_json":
        return lambda value, record: as_headers(value)
    if kind == "integer":
        unit, add = spec.get("unit", ""), spec.get("add", 0)
        if unit not in ("", SPAN, NANOSECONDS, *UNITS_US) or not isinstance(add, int):
            units = ", ".join((*UNITS_US, NANOSECONDS, SPAN))
            raise MappingError(f"{place}: unit must be one of {units}, and add a whole number.")
        if name.endswith("_ms"):
            return lambda value, record: as_counted(as_milliseconds(value, unit or "ms") + add)
        return lambda value, record: as_counted(as_integer(value) + add)
    if kind == "boolean":
        return lambda value, record: as_boolean(value)
    if spec.get("list"):
        return lambda value, record: bounded(
            as_text(value[0] if isinstance(value, list) else value)
        )
    return lambda value, record: bounded(as_text(value))


def _of_trace(name: str, spec: Mapping[str, Any]) -> Callable[[Any, Record], Any]:
    """Values of a trace keep their types; some logs write them as terms of Erlang, or as text."""
    if spec.get("erlang"):
        # An empty table and an empty list are the same term.
        empty: Any = {} if name == "properties" else []
        return lambda value, record: read_erlang(as_text(value)) or empty
    if spec.get("base64"):
        return lambda value, record: in_base64(as_text(value))
    return lambda value, record: value


def _condition(values: Any, place: str) -> Condition:
    """All of: path = value, a list of values, or {matches, exists, above}."""
    if not isinstance(values, dict):
        raise MappingError(f"{place}: when must be a table of paths.")
    tests = [_test(path, wanted, place) for path, wanted in values.items()]
    return lambda record: all(test(record) for test in tests)


def _test(path: str, wanted: Any, place: str) -> Condition:
    if isinstance(wanted, dict):
        _refuse_unknown(wanted, {"matches", "exists", "above", "not"}, f"{place}: when {path}")
        if "exists" in wanted:
            return lambda record: has_value(record, path) == bool(wanted["exists"])
        if "above" in wanted:
            return lambda record: _is_above(find_value(record, path), wanted["above"])
        if "not" in wanted:
            other = {as_text(value) for value in _as_list(wanted["not"])}
            return lambda record: _plain_text(record, path) not in other
        pattern = _pattern(wanted, "matches")
        if pattern is None:
            raise MappingError(f"{place}: when {path} needs matches, exists, above or not.")
        return lambda record: bool(search(pattern, _plain_text(record, path)[:LONGEST_TEXT]))
    texts = {as_text(value) for value in _as_list(wanted)}
    return lambda record: has_value(record, path) and _plain_text(record, path) in texts


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain_text(record: Record, path: str) -> str:
    value = find_value(record, path)
    return "" if value is _MISSING else as_text(value)


def _is_above(value: Any, bound: Any) -> bool:
    try:
        return value is not _MISSING and float(value) > float(bound)
    except (TypeError, ValueError):
        return False


def _refuse_unknown(values: Mapping[str, Any], known: set[str], place: str) -> None:
    unknown = sorted(values.keys() - known)
    if unknown:
        raise MappingError(f"{place} has an unknown part: {unknown[0]}.")


def _texts(values: Mapping[str, Any], name: str) -> list[str]:
    found = values.get(name, [])
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise MappingError(f"{name} must be a list of texts.")
    return found


def _separator(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1:
        raise MappingError("separator must be one character.")
    return value


def search(pattern: regex.Pattern[str], text: str) -> regex.Match[str] | None:
    """Where the pattern is in the text. Other threads go on meanwhile. Raises SlowPattern."""
    try:
        return pattern.search(text, concurrent=True, timeout=SEARCH_SECONDS)
    except TimeoutError as error:
        raise SlowPattern(
            f"A regular expression of the mapping takes more than {SEARCH_SECONDS:.0f} seconds for "
            f"a text. Avoid repetitions within repetitions: {pattern.pattern[:80]}"
        ) from error


def _pattern(values: Mapping[str, Any], name: str) -> regex.Pattern[str] | None:
    if name not in values:
        return None
    try:
        return regex.compile(str(values[name]), regex.DOTALL)
    except regex.error as error:
        raise MappingError(f"{name} is no regular expression: {error}.") from error


def _moment_reader(spec: Mapping[str, Any], place: str) -> Callable[[Any], datetime]:
    form = spec.get("time", "iso")
    if not isinstance(form, str) or not (form in TIMES or "%" in form):
        raise MappingError(f"{place}: time must be one of {', '.join(TIMES)}, or have % codes.")
    zone: tzinfo | None = None
    if "zone" in spec:
        try:
            zone = ZoneInfo(str(spec["zone"]))
        except (ValueError, OSError, KeyError) as error:
            raise MappingError(f"{place}: the zone {spec['zone']!r} is unknown.") from error
    return lambda value: as_moment(value, form, zone)


def iterate_items(document: Any, items: str) -> Iterator[Any]:
    """The records of a document at a path that ends in "*" or leads to a list."""
    path = items.removesuffix("*").rstrip(".")
    found = find_value(document, path) if path else document
    if isinstance(found, Mapping):
        yield from found.values()
    elif isinstance(found, list):
        yield from found
    else:
        raise RecordError(f"The document has no list or object at “{items}”.")
