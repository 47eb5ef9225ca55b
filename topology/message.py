"""A message as it lies in a queue, one to be published, and the route of a delay."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import lru_cache
from types import NoneType
from typing import Any, TypeAlias

from topology.definitions import Definitions

Headers: TypeAlias = Mapping[str, Any]

# Headers in which a quorum queue counts deliveries of a message that comes again (4.0.5, 4.3.6).
COUNTED_BY_QUEUE = frozenset({"x-delivery-count", "x-acquired-count"})
# Headers that dying, passing a quorum queue or a replay adds to a message (rabbit_dead_letter.erl
# 3.10.8, mc_amqpl.erl 4.3.5).
DEATH_HEADERS = COUNTED_BY_QUEUE | frozenset(
    {
        "x-death",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
    }
)
TRACKING_HEADER = "delayboard-tracking-id"
REPLAY_HEADER = "delayboard-replay-id"
# Headers of a probe: the name of its queue, and when it was sent in UTC microseconds.
PROBE_HEADER, PROBE_SENT_HEADER = "delayboard-probe", "delayboard-probe-sent-at-us"
REPLAYS_HEADER = "delayboard-replays"
# Header of a message that was published again after a kill. Headers “x-opt-” change no content id.
DOUBLED_HEADER = "x-opt-delayboard-may-be-duplicated"
PUBLISHED_AT_HEADER = "delayboard-published-at-ms"
# Header in which a consumer counts its failures; headers “x-” are the broker's.
ATTEMPT_HEADER = "attempt"
# Headers that routing, dying or a replay adds or removes. Dead-lettering also removes the
# expiration, a replay the user id.
CHANGED_BY_ROUTING = DEATH_HEADERS | {"CC", "BCC", REPLAY_HEADER, REPLAYS_HEADER}
CHANGED_PROPERTIES = frozenset({"expiration", "user_id"})


@dataclass(frozen=True)
class Properties:
    """AMQP basic properties.

    `raw` is the content header's property part, byte for byte as received; publishing a message
    again starts from it. The decoded fields are for display and decisions. Decoding is tolerant:
    unreadable fields are omitted and listed in `problems`.
    """

    raw: bytes = b"\x00\x00"
    content_type: str | None = None
    content_encoding: str | None = None
    headers: Headers = field(default_factory=dict)
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None
    problems: tuple[str, ...] = ()

    def stated(self) -> dict[str, Any]:
        """The properties that are set, without the headers, in the protocol's order."""
        excluded = ("raw", "headers", "problems")
        names = [field.name for field in fields(self) if field.name not in excluded]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class Message:
    """A message taken from a queue: where it was last published to, and all of its content."""

    exchange: str
    routing_key: str
    properties: Properties
    body: bytes
    redelivered: bool = False

    @property
    def headers(self) -> Headers:
        return self.properties.headers

    @property
    def content_id(self) -> str:
        return content_id(self.properties, self.body)

    def tag(self, header: str) -> str:
        """A header's value when it is a text, "" otherwise."""
        value = self.headers.get(header)
        return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class Publish:
    """What to publish: an exchange ("" is the default one), a key, properties and a body."""

    exchange: str
    routing_key: str
    properties: Properties = field(default_factory=Properties)
    body: bytes = b""


@dataclass(frozen=True)
class Route:
    """How to publish with a delay: declare `declares`, then publish with this exchange and key.

    Declared objects exist for at least `lease`; a later publish must declare them again. None:
    they are permanent. `headers` are part of the route; `due_header` names one more, if any, that
    the due time must be written to: the time of the publish plus `due_after`, in UTC milliseconds.
    """

    exchange: str
    routing_key: str
    declares: Definitions = field(default_factory=Definitions)
    lease: timedelta | None = None
    headers: Headers = field(default_factory=dict)
    due_header: str = ""
    due_after: timedelta = timedelta(0)

    def make_headers(self, now_ms: int) -> dict[str, Any]:
        """The headers of this route for a publish at this time (UTC milliseconds)."""
        if not self.due_header:
            return dict(self.headers)
        due_ms = now_ms + self.due_after // timedelta(milliseconds=1)
        return {**self.headers, self.due_header: due_ms}


@dataclass(frozen=True)
class Forwarder:
    """A consumer of ours that reads from a header when a message is due.

    It publishes due messages to the queue `onward` and others to `back`, both through the default
    exchange. Predictions assume that it does so at once.
    """

    queue: str
    onward: str
    back: str
    due_header: str


_NOT_HASHED = CHANGED_PROPERTIES | {"raw", "headers", "problems"}
_HASHED = tuple(sorted({field.name for field in fields(Properties)} - _NOT_HASHED))
_PLAIN = frozenset({str, int, bool, float, NoneType})


def content_id(properties: Properties, body: bytes) -> str:
    """A hash (32 hex digits) of properties and body without what dying or replaying changes.

    The same message has the same id in every queue it passes; two published with equal
    properties and body share it.
    """
    parts = []
    for name in _HASHED:
        if (value := getattr(properties, name)) is not None:
            parts.append(f"[{_canonical_name(name)}{_canonical(value)}]")
    headers = properties.headers
    for name in sorted(headers):
        if name not in CHANGED_BY_ROUTING and not name.startswith("x-opt-"):
            parts.append(f"[{_canonical_name(name)}{_canonical(headers[name])}]")
    stated = "".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%b\x00body%b" % (stated, body)).hexdigest()[:32]


def kept_by_streams(properties: Properties) -> Properties:
    """What names a message without an id in the event log; not to publish.

    It is what the copies of stream taps had, which earlier versions made: with another rule, copies
    of messages that wait since then would match none. A stream keeps no table or list but in
    headers that begin with “x-”, and of x-death only the broker's own; no cluster id; bytes as
    text; and everything not persistent as transient (mc_amqpl.erl; tried on 4.0.5 and 4.3.6).
    """
    mode = 2 if properties.delivery_mode == 2 else 1
    is_kept = properties.delivery_mode == mode and properties.cluster_id is None
    # Of what routing changes the content has nothing.
    of_content = properties.headers.keys() - CHANGED_BY_ROUTING if is_kept else ()
    if is_kept and all(type(properties.headers[name]) in _PLAIN for name in of_content):
        return properties
    headers = {
        name: _as_text(value)
        for name, value in properties.headers.items()
        if name.startswith("x-") or name == "CC" or not isinstance(value, (Mapping, list, tuple))
    }
    return replace(properties, headers=headers, delivery_mode=mode, cluster_id=None)


def _as_text(value: Any) -> Any:
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        case Mapping():
            return {name: _as_text(item) for name, item in value.items()}
        case list() | tuple():
            return [_as_text(item) for item in value]
    return value


def _canonical(value: Any) -> str:
    """A header value as a text, the same for equal values in whatever order tables came.

    One call per level of nesting, so that the deepest header that is read stays far from
    Python's limit.
    """
    if type(value) not in _PLAIN:
        if isinstance(value, Mapping):
            pairs = ""
            for key in sorted(value, key=str):
                pairs += _canonical(str(key)) + _canonical(value[key])
            return "{" + pairs + "}"
        if isinstance(value, (list, tuple)):
            return "[" + "".join([_canonical(item) for item in value]) + "]"
    text = repr(value)
    length = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return f"{type(value).__name__}:{length}:{text}"


_canonical_name = lru_cache(maxsize=1024)(_canonical)
