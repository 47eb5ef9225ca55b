"""Parameters as texts: delays and JSON lists, and what is wrong with a parameter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from topology.definitions import MAXIMUM_TTL_MS
from topology.delays import DelayError, format_delay, parse_delay
from topology.patterns.pattern import ParamsError


def read_delay(text: str, name: str = "delay") -> timedelta:
    """Raises ParamsError for the parameter `name`."""
    try:
        return parse_delay(text)
    except DelayError as error:
        raise ParamsError({name: str(error)}) from error


def read_delays(values: Mapping[str, str]) -> tuple[timedelta, ...]:
    """The parameter "delays", separated by commas. Raises ParamsError."""
    parts = values.get("delays", "").split(",")
    return tuple(read_delay(part.strip(), "delays") for part in parts if part.strip())


def write_delays(delays: Iterable[timedelta]) -> str:
    return ", ".join(format_delay(delay) for delay in delays)


def delay_problem(delay: timedelta) -> str:
    """Why RabbitMQ takes no TTL of this length; "" if it does."""
    if delay < timedelta(milliseconds=1):
        return "The delay must be at least 1 ms."
    if delay > timedelta(milliseconds=MAXIMUM_TTL_MS):
        return "RabbitMQ accepts no delay over 3650 days."
    return ""


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
