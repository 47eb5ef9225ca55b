"""PURE: terms of Erlang, as RabbitMQ prints them in texts -> values."""

from __future__ import annotations

import re
from typing import Any

from analytics.mappings.values import RecordError

_ERLANG = re.compile(
    r'\s*(?:(?P<open>[\[{])|(?P<close>[\]}])|,|<<"(?P<text>(?:[^"\\]|\\.)*)"(?:/utf8)?>>'
    r"|<<(?P<bytes>[\d,\s]*)>>|(?P<number>-?\d+(?:\.\d+(?:e[+-]?\d+)?)?)|(?P<atom>[a-z]\w*))\s*"
)


def read_erlang(text: str) -> Any:
    """A term as `~p` prints it: AMQP tables become objects, arrays and binaries lists and texts.

    rabbit_tracing_consumer.erl prints properties and keys so. Raises RecordError.
    """
    stack: list[list[Any]] = [[]]
    closes: list[str] = []
    at = 0
    while at < len(text):
        found = _ERLANG.match(text, at)
        if found is None or found.end() == at or len(stack) > 100:
            raise RecordError(f"{text[at : at + 40]!r} is no term of Erlang.")
        at = found.end()
        if found["open"]:
            stack.append([])
            closes.append("]" if found["open"] == "[" else "}")
        elif found["close"]:
            if not closes or closes.pop() != found["close"]:
                raise RecordError("The term of Erlang has unequal brackets.")
            done = stack.pop()
            stack[-1].append(tuple(done) if found["close"] == "}" else done)
        elif found["text"] is not None:
            stack[-1].append(re.sub(r"\\(.)", r"\1", found["text"]))
        elif found["bytes"] is not None:
            numbers = [int(part) % 256 for part in found["bytes"].split(",") if part.strip()]
            stack[-1].append(bytes(numbers).decode("utf-8", "backslashreplace"))
        elif found["number"]:
            number = found["number"]
            stack[-1].append(float(number) if "." in number else int(number))
        elif found["atom"]:
            known = {"true": True, "false": False, "undefined": None}
            stack[-1].append(known.get(found["atom"], found["atom"]))
    if closes or len(stack[0]) != 1:
        raise RecordError("The term of Erlang is incomplete.")
    return _of_table(stack[0][0])


def _of_table(term: Any) -> Any:
    """Entries {Name, Type, Value} to an object, elements {Type, Value} of an array to values."""
    if isinstance(term, list):
        if term and all(isinstance(item, tuple) and len(item) == 3 for item in term):
            return {str(name): _of_typed(kind, value) for name, kind, value in term}
        if term and all(isinstance(item, tuple) and len(item) == 2 for item in term):
            return [_of_typed(kind, value) for kind, value in term]
        return [_of_table(item) for item in term]
    return term


def _of_typed(kind: Any, value: Any) -> Any:
    if kind == "table":
        return _of_table(value) or {}
    return _of_table(value) if kind == "array" else value
