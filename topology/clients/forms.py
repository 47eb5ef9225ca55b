"""Forms in which a library writes a value: a trace, an address, a count. None is for no value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from topology.clients.parts import read_text

# Characters of a stack trace that are read: its first lines contain the class.
READ_CHARACTERS = 20_000
SEARCHED_CHARACTERS = 1_000
MOST_CHARACTERS = 1_000
# Class in which spring-rabbit wraps what a listener throws.
SPRING_WRAPPER = "ListenerExecutionFailedException"
MOST_ATTEMPTS = 1_000_000
_CAUSED_BY = "Caused by: "
# Name of a class with its package, as Java, .NET, Python and Ruby write it.
_CLASS = re.compile(r"[^\W\d]\w*(?:(?:[.$+]|::)[^\W\d]\w*)*")
_EXCEPTION = re.compile(r"[^\W\d]\w*(?:[.+][^\W\d]\w*)*[.+]\w*Exception\b")
# Headers with a trace parent, in this order: OpenTelemetry and NServiceBus, CloudEvents (AMQP
# binding 3.2.1), MassTransit since 8 and before (Logging/DiagnosticHeaders.cs).
PARENTS = (
    *("traceparent", "cloudevents:traceparent", "cloudevents_traceparent"),
    *("mt-activity-id", "diagnostic-id"),
)
STATES = ("tracestate", "cloudevents:tracestate", "cloudevents_tracestate")
# A trace parent: version, trace, parent, flags; versions after 00 may have more
# (w3.org/TR/trace-context).
PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
LONGEST_STATE = 512


def class_of_trace(trace: str) -> str:
    """The class at the beginning of a stack trace, or the cause that Spring's wrapper names."""
    lines = trace[:READ_CHARACTERS].splitlines()
    first = _class_of(lines[0]) if lines else ""
    if first.endswith(SPRING_WRAPPER):
        causes = (line.strip() for line in lines[1:])
        inner = (line[len(_CAUSED_BY) :] for line in causes if line.startswith(_CAUSED_BY))
        return next((name for name in map(_class_of, inner) if name), first)
    return first


def message_of_trace(trace: str) -> str:
    """The text behind the class in the first line: “java.io.IOException: gone”."""
    first = first_line(trace)
    if _class_of(first).endswith(SPRING_WRAPPER):
        return ""
    return first.partition(": ")[2]


def first_line(text: str) -> str:
    lines = (" ".join(line.split()) for line in text[:READ_CHARACTERS].splitlines())
    return next(filter(None, lines), "")


def name_of_type(text: str) -> str:
    """The type without its assembly, the first of several: “Shop.Placed, Shop, Version=1;…”."""
    return text.split(";")[0].split(",")[0].strip()


def _class_of(line: str) -> str:
    found = _CLASS.match(line.strip())
    return found[0] if found else ""


def _exception_in(text: str) -> str:
    """The first name with a namespace that ends in Exception."""
    found = _EXCEPTION.search(text[:SEARCHED_CHARACTERS])
    return found[0] if found else ""


def _message_behind(text: str) -> str:
    """What follows the name of the exception, up to the end of its line."""
    found = _EXCEPTION.search(text[:SEARCHED_CHARACTERS])
    return first_line(text[found.end() :].lstrip(": ")) if found else ""


def _last_of_python(trace: str) -> str:
    """A Python traceback ends with “module.Error: message”, which may have more lines."""
    lines = trace[-READ_CHARACTERS:].rstrip().splitlines()
    stacked = [number for number, line in enumerate(lines) if line.startswith(" ")]
    behind = lines[stacked[-1] + 1 :] if stacked else lines
    return first_line("\n".join(behind))


def _python_message(trace: str) -> str:
    return _last_of_python(trace).partition(": ")[2]


def _queue_of_address(text: str) -> str:
    """The queue of "rabbitmq://host/vhost/queue?durable=false"; "" of what is no address."""
    try:
        path = urlsplit(text).path
    except ValueError:
        return ""
    return unquote(path.rpartition("/")[2], errors="backslashreplace")


def _without_suffix(text: str) -> str:
    """dramatiq writes the delay queue of a message into it: `orders.DQ` of `orders`."""
    return text.removesuffix(".DQ")


_TEXTS: Mapping[str, Callable[[str], str]] = {
    "text": str.strip,
    "line": first_line,
    "trace_type": class_of_trace,
    "trace_message": message_of_trace,
    "python_type": lambda trace: _class_of(_last_of_python(trace)),
    "python_message": _python_message,
    "exception_name": _exception_in,
    "exception_message": _message_behind,
    "type": name_of_type,
    "urn": lambda text: name_of_type(text).removeprefix("urn:message:"),
    "address": _queue_of_address,
    # MSMQ's addresses are "queue@machine"; RabbitMQ's have no machine.
    "queue_at_machine": lambda text: text.partition("@")[0].strip(),
    "work_queue": _without_suffix,
}


def _read_number(value: Any) -> int | None:
    """A whole number from 0 to a million, also as text."""
    if isinstance(value, (str, bytes, bytearray)):
        text = read_text(value[:10]).strip()
        value = int(text) if text.isascii() and text.isdecimal() else None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= MOST_ATTEMPTS else None


def _count_failures(value: Any) -> int | None:
    """The attempt that failed: the one after n failures before."""
    failures = _read_number(value)
    return None if failures is None else failures + 1


def _read_time(value: Any) -> datetime | None:
    """A date, seconds or milliseconds since 1970 as UTC; NServiceBus has " Z" and microseconds."""
    try:
        if isinstance(value, datetime):
            read = value
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            read = datetime.fromtimestamp(value / (1000 if value > 1e11 else 1), UTC)
        else:
            text = read_text(value)[:60].strip()
            if text.isascii() and text.isdecimal():
                return _read_time(int(text))
            nservicebus = re.fullmatch(r"([\d-]{10}) (\d\d:\d\d:\d\d):(\d{6}) Z", text)
            if nservicebus:
                text = "{}T{}.{}+00:00".format(*nservicebus.groups())
            read = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _read_words(read: Callable[[str], str]) -> Callable[[Any], str | None]:
    return lambda value: read(read_text(value))[:MOST_CHARACTERS] or None


FORMS: Mapping[str, Callable[[Any], Any]] = {
    **{name: _read_words(read) for name, read in _TEXTS.items()},
    # A stack trace is shown whole, as far as it is read.
    "trace": lambda value: read_text(value)[:READ_CHARACTERS].strip() or None,
    "number": _read_number,
    "failures": _count_failures,
    "time": _read_time,
}


@dataclass(frozen=True)
class Trace:
    """`trace_id` and `parent_id` (the span that published) are hex digits; `state` may be ""."""

    trace_id: str
    parent_id: str
    is_sampled: bool
    state: str = ""


def read_trace(headers: Mapping[str, object]) -> Trace | None:
    """None for headers that state no valid trace. Reads what any client can have sent."""
    by_name = {name.lower(): value for name, value in headers.items()}
    for name in PARENTS:
        found = PARENT.fullmatch(_text(by_name.get(name)))
        if found and (found[1] != "00" or not found[5]):
            states = [_text(by_name.get(name)) for name in STATES]
            is_sampled = bool(int(found[4], 16) & 1)
            return Trace(found[2], found[3], is_sampled, next(filter(_is_state, states), ""))
    return None


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return value if isinstance(value, str) else ""


def _is_state(text: str) -> bool:
    return text.isascii() and text.isprintable() and 0 < len(text) <= LONGEST_STATE
