"""PURE: what a list of waiting messages showed, against what was sent and when it arrived.

Seconds since the epoch, all from one machine's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass
class SentMessage:
    """A message that was sent between `begun` and `confirmed`, to wait `delay` seconds.

    `arrived` is None while nobody has received it.
    """

    delay: float
    begun: float
    confirmed: float
    arrived: float | None = None


@dataclass(frozen=True)
class Listing:
    """What the list showed, by message id, at some moment between `begun` and `ended`."""

    begun: float
    ended: float
    shown: Counter[str]


def contradictions(
    messages: Mapping[str, SentMessage],
    looks: Iterable[Listing],
    *,
    within: float,
    blind: Sequence[tuple[float, float]] = (),
) -> list[str]:
    """What was shown too much or too little, at its last such look: one sentence each.

    The list has `within` seconds to show what began to wait and to drop what arrived. Until its
    delay is over a message certainly waits. Looks during a `blind` time (from, until) say nothing.
    """
    wrong: dict[tuple[str, str], str] = {}
    for look in looks:
        if any(begun <= look.ended and look.begun <= ended for begun, ended in blind):
            continue
        for name, times in look.shown.items():
            if times > 1:
                wrong[name, "often"] = f"{name} is shown {times} times"
            if name not in messages:
                wrong[name, "unknown"] = f"{name} was never sent"
        for name, message in messages.items():
            if name in look.shown:
                if message.arrived is not None and message.arrived + within < look.begun:
                    since = look.begun - message.arrived
                    wrong[name, "still"] = f"{name} is shown {since:.2f} s after it arrived"
            elif (
                message.confirmed + within < look.begun < look.ended < message.begun + message.delay
            ):
                since = look.begun - message.confirmed
                wrong[name, "missing"] = f"{name} is missing {since:.2f} s after it was sent"
    return list(wrong.values())


def due_errors(messages: Mapping[str, SentMessage], due: Mapping[str, float]) -> dict[str, float]:
    """By how many seconds the due times lie outside of when they may be; 0 within.

    A message is due its delay after some moment between its sending and its confirmation.
    """
    return {
        name: max(
            messages[name].begun + messages[name].delay - at,
            at - messages[name].confirmed - messages[name].delay,
            0.0,
        )
        for name, at in due.items()
    }
