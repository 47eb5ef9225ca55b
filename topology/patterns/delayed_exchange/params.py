"""The parameters of a delayed exchange: its name, how it chooses, and what is bound to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from topology.definitions import (
    DELAYED_TYPE,
    Arguments,
    Binding,
    Definitions,
    Exchange,
)
from topology.patterns.names import (
    LONGEST_NAME_BYTES,
    byte_length,
    control_problem,
    key_problem,
    name_problem,
    unicode_problem,
)
from topology.patterns.texts import choice_problem, read_fields, read_json_list, refuse

KIND = "delayed_exchange"

TYPES = {
    "direct": "direct: bindings with exactly this key",
    "topic": "topic: bindings whose pattern matches the key",
    "fanout": "fanout: all bindings, regardless of the key",
}
FIELDS = read_fields(__file__, type=TYPES)
_BOUND = "Write queues or key=queue separated by spaces, or a JSON list of [key, queue]."


@dataclass(frozen=True)
class Params:
    """`bound` are (routing key, queue), in order and each once."""

    name: str
    type: str
    bound: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", tuple(sorted(set(self.bound))))
        refuse(
            {
                "name": name_problem(self.name, LONGEST_NAME_BYTES),
                "type": choice_problem(self.type, TYPES),
                "queues": _bound_problem(self.bound),
            }
        )

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(sorted({key for key, _ in self.bound}))


def parse(values: Mapping[str, str]) -> Params:
    return Params(
        values.get("name", ""),
        values.get("type") or "direct",
        _read_bound(values.get("queues", "")),
    )


def store(params: Params) -> dict[str, str]:
    return {"name": params.name, "type": params.type, "queues": _write_bound(params.bound)}


def _read_bound(text: str) -> tuple[tuple[str, str], ...]:
    if not text.lstrip().startswith("["):
        return tuple(_read_word(word) for word in text.split())
    pairs = read_json_list(text, _is_pair, {"queues": _BOUND})
    return tuple((key, queue) for key, queue in pairs)


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(e, str) for e in pair)


def _read_word(word: str) -> tuple[str, str]:
    key, equals, queue = word.partition("=")
    return (key, queue) if equals else (word, word)


def _write_bound(bound: tuple[tuple[str, str], ...]) -> str:
    """Write a bound as words where they would be read back as the same, else as JSON."""
    words = [queue if key == queue else f"{key}={queue}" for key, queue in bound]
    text = " ".join(words)
    if not text.startswith("[") and tuple(_read_word(word) for word in text.split()) == bound:
        return text
    return json.dumps([list(pair) for pair in bound], ensure_ascii=False)


def _bound_problem(bound: tuple[tuple[str, str], ...]) -> str:
    if not bound:
        return "Enter at least one queue. Without a binding RabbitMQ drops all messages."
    for key, queue in bound:
        if problem := key_problem(key) or unicode_problem(queue):
            return problem
        if not queue or byte_length(queue) > LONGEST_NAME_BYTES or control_problem(queue):
            return f"“{queue}” is not a valid queue name."
    return ""


def definitions(params: Params) -> Definitions:
    """The exchange and its bindings; the queues are somebody else's."""
    exchange = Exchange(
        params.name, DELAYED_TYPE, arguments=Arguments({"x-delayed-type": params.type})
    )
    bound = [Binding(params.name, queue, key) for key, queue in params.bound]
    return Definitions.of([exchange, *bound])
