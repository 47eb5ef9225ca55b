"""Reading the texts of options; each raises ValueError with a sentence. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import TypeVar

from topology.delays import DelayError, format_delay, parse_delay

FASTEST = 100_000
_SECOND = timedelta(seconds=1)
YES = frozenset({"1", "on", "true", "yes"})
NO = frozenset({"", "0", "off", "false", "no"})

Choice = TypeVar("Choice", bound=Enum)


def make_choice_parser(kind: type[Choice]) -> Callable[[str], Choice]:
    """One of the values of this kind."""

    def parse(text: str) -> Choice:
        try:
            return kind(text)
        except ValueError:
            known = ", ".join(str(one.value) for one in kind)
            raise ValueError(f"“{text[:40]}” is none of these: {known}.") from None

    return parse


def make_number_parser(least: int, most: int, sentence: str) -> Callable[[str], int]:
    """A whole number in bounds; `said` is the sentence for any other."""

    def parse(text: str) -> int:
        digits = text.replace(",", "")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
            raise ValueError(f"“{text[:40]}” is no whole number. {sentence}")
        if not least <= int(digits) <= most:
            raise ValueError(sentence)
        return int(digits)

    return parse


def parse_rate(text: str) -> float:
    """Messages a second."""
    sentence = "Enter messages per second, such as 50 or 0.5; empty is no limit."
    try:
        rate = float(text)
    except ValueError:
        raise ValueError(f"“{text[:40]}” is no number. {sentence}") from None
    if not math.isfinite(rate) or not 0.001 <= rate <= FASTEST:
        raise ValueError(f"Between 0.001 and {FASTEST:,} messages a second can be sent. {sentence}")
    return rate


def parse_wait(text: str) -> timedelta:
    """A duration that is longer than nothing."""
    found = _duration(text)
    if found <= timedelta(0):
        raise ValueError("A delay of nothing is none: choose another target, or a longer delay.")
    return found


def make_seconds_parser(longest: timedelta) -> Callable[[str], int]:
    """A duration up to `longest`, as whole seconds, rounded up."""

    def parse(text: str) -> int:
        found = _duration(text)
        if found > longest:
            raise ValueError(f"This can be {format_delay(longest)} at most.")
        return -(-found // _SECOND)

    return parse


def _duration(text: str) -> timedelta:
    if len(text) > 40:
        raise ValueError("This is no duration. Write it like 90s, 5m or 1h30m.")
    try:
        return parse_delay(text)
    except DelayError as error:
        raise ValueError(str(error)) from None


def parse_yes(text: str) -> bool:
    if text.lower() not in YES | NO:
        raise ValueError("Say yes or no.")
    return text.lower() in YES
