"""Parameters as texts, as forms and the database have them, and what is wrong with a parameter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, get_type_hints

from topology.definitions import MAXIMUM_TTL_MS
from topology.delays import DelayError, format_delay, parse_delay
from topology.patterns.pattern import Field, ParamsError, read_texts

Params = TypeVar("Params")


def read_fields(module: str, **choices: Mapping[str, str]) -> tuple[Field, ...]:
    """The fields of a pattern's form, from texts.toml beside this module; `choices` are by the
    field's name.
    """
    return tuple(
        Field(name, choices=tuple(choices.get(name, {}).items()), **texts)
        for name, texts in read_texts(module)["fields"].items()
    )


def read_delay(text: str, name: str = "delay") -> timedelta:
    """Raises ParamsError for the parameter `name`."""
    try:
        return parse_delay(text)
    except DelayError as error:
        raise ParamsError({name: str(error)}) from error


def _read_delays(text: str) -> tuple[timedelta, ...]:
    """Delays separated by commas. Raises DelayError."""
    return tuple(parse_delay(part.strip()) for part in text.split(",") if part.strip())


def write_delays(delays: Iterable[timedelta]) -> str:
    return ", ".join(format_delay(delay) for delay in delays)


class Format(NamedTuple):
    """How a parameter is read from a text (raises ValueError or ParamsError), and written."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


_FORMATS = {
    str: Format(str, str),
    timedelta: Format(parse_delay, format_delay),
    tuple[timedelta, ...]: Format(_read_delays, write_delays),
}


def number_format(most: int) -> Format:
    """A number of at most so many digits as `most` has; the parameters check its range."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
            raise ValueError(f"Enter a number from 1 to {most}.")
        return int(text)

    return Format(read, str)


def names_format(name: str) -> Format:
    """Names separated by spaces, or a JSON list where one is empty, holds a space or begins with
    a bracket; `name` is the parameter with a problem."""

    def read(text: str) -> tuple[str, ...]:
        if not text.lstrip().startswith("["):
            return tuple(text.split())
        problem = {name: "Write names separated by spaces, or a JSON list of texts."}
        return tuple(read_json_list(text, lambda one: isinstance(one, str), problem))

    def write(names: tuple[str, ...]) -> str:
        if all(one.split() == [one] and not one.startswith("[") for one in names):
            return " ".join(names)
        return json.dumps(names, ensure_ascii=False)

    return Format(read, write)


def text_functions(
    kind: type[Params], **formats: Format
) -> tuple[Callable[[Mapping[str, str]], Params], Callable[[Params], dict[str, str]]]:
    """Returns `parse` and `store` for a dataclass of parameters.

    Each field has the format of its type, or the one in `formats`. A missing text is the field's
    default. `parse` raises ParamsError.
    """
    types, dataclass = get_type_hints(kind), fields(kind)  # type: ignore[arg-type]
    format_of = {one.name: formats.get(one.name) or _FORMATS[types[one.name]] for one in dataclass}
    defaults = {one.name: one.default for one in dataclass if one.default is not MISSING}

    def parse(values: Mapping[str, str]) -> Params:
        read = dict(defaults)
        problems: dict[str, str] = {}
        for name, one in format_of.items():
            text = values.get(name, "")
            if not text and name in defaults:
                continue
            try:
                value = one.read(text)
                read[name] = defaults.get(name, value) if value == () else value
            except ParamsError as error:
                problems |= error.problems
            except ValueError as error:
                problems[name] = str(error)
        refuse(problems)
        return kind(**read)

    def store(params: Params) -> dict[str, str]:
        return {name: one.write(getattr(params, name)) for name, one in format_of.items()}

    return parse, store


def delay_problem(delay: timedelta) -> str:
    """Why RabbitMQ takes no TTL of this length; "" if it does."""
    if delay < timedelta(milliseconds=1):
        return "The delay must be at least 1 ms."
    if delay > timedelta(milliseconds=MAXIMUM_TTL_MS):
        return "RabbitMQ accepts no delay over 3650 days."
    return ""


def choice_problem(value: str, known: Iterable[str]) -> str:
    """Why this is none of the known values; "" if it is one."""
    return "" if value in known else f"Choose one of {', '.join(known)}."


def read_json_list(text: str, is_item: Callable[[Any], bool], problem: dict[str, str]) -> list[Any]:
    """A JSON list of such items. Raises ParamsError with the problem."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(map(is_item, found)):
        raise ParamsError(problem)
    return found


def refuse(problems: Mapping[str, str]) -> None:
    """Raises ParamsError with the sentences that are not empty."""
    if found := {name: problem for name, problem in problems.items() if problem}:
        raise ParamsError(found)
