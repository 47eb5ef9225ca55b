"""The parameters of a retry loop: its names, its timeouts, and what of them makes no sound loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from topology.delays import UNITS_MS, milliseconds
from topology.patterns.names import (
    LONGEST_NAME_BYTES,
    control_problem,
    header_problem,
    key_problem,
    name_problem,
)
from topology.patterns.retry_loop.keys import ANY_WORDS, key_for_none, overlap
from topology.patterns.texts import choice_problem, delay_problem, refuse

KIND = "retry_loop"

DEFAULT_DELAY = timedelta(milliseconds=60_000)
# Most “#” of a topic binding from 4.3.5 on (release notes of RabbitMQ 4.3.5).
MOST_ANY_WORDS = 2
MOST_TIMEOUTS = 50
PRESETS = {
    "durable": "durable, classic queues",
    "quorum": "durable, quorum queues",
    "article": "transient exchanges, no queue type",
}
SPLITS = {
    "none": "one for all",
    "key": "several, by routing key",
    "header": "several, by a header",
}
EXCHANGE_TYPES = {"none": "fanout", "key": "topic", "header": "headers"}
BINDING_KEYS = {"empty": "empty", "queue": "the queue's name, the default of pika"}
KEYS_OF_PRESETS = {"durable": "empty", "quorum": "empty", "article": "queue"}


@dataclass(frozen=True)
class Timeout:
    """What a message must have to wait so long: a key that `match` matches, or its text as value
    of the header. `queue` "" is named after the input queue and the delay."""

    match: str
    delay: timedelta
    queue: str = ""


@dataclass(frozen=True)
class Params:
    """All names; with `split` other than "none" the timeouts too.

    `return_exchange` "" is no separate return. With several timeouts, `dead_queue` and `delay` are
    for what matches none, behind `unmatched_exchange`; "" for both: such a message is lost.
    """

    input_exchange: str
    input_queue: str
    dead_exchange: str
    dead_queue: str = ""
    delay: timedelta = DEFAULT_DELAY
    preset: str = "durable"
    return_exchange: str = ""
    split: str = "none"
    header: str = ""
    timeouts: tuple[Timeout, ...] = ()
    unmatched_exchange: str = ""
    binding_keys: str = ""

    def __post_init__(self) -> None:
        named = (
            timeout if timeout.queue else replace(timeout, queue=own_queue(self, timeout.delay))
            for timeout in self.timeouts
        )
        ordered = sorted(set(named), key=lambda one: (one.delay, one.match, one.queue))
        object.__setattr__(self, "timeouts", tuple(ordered))
        if not self.binding_keys:
            object.__setattr__(self, "binding_keys", KEYS_OF_PRESETS.get(self.preset, "empty"))
        if not self.keeps_unmatched:
            object.__setattr__(self, "delay", timedelta(0))
        refuse(_problems(self))

    @property
    def queue_type(self) -> str:
        return "quorum" if self.preset == "quorum" else "classic"

    @property
    def keeps_unmatched(self) -> bool:
        """Whether there is a dead queue for what matches no timeout, or for all."""
        return self.split == "none" or bool(self.dead_queue or self.unmatched_exchange)

    @property
    def back_exchange(self) -> str:
        """Where a dead queue sends a message when its time is up."""
        return self.return_exchange or self.input_exchange

    @property
    def unmatched(self) -> tuple[Timeout, ...]:
        """The timeout of what matches none of the others, if there is one."""
        return (Timeout("", self.delay, self.dead_queue),) if self.keeps_unmatched else ()

    @property
    def all_timeouts(self) -> tuple[Timeout, ...]:
        return (*self.unmatched, *self.timeouts)


def own_queue(params: Params, delay: timedelta) -> str:
    """The name of the dead queue of a timeout that states none, such as "orders_dead_1h30m"."""
    words, ms = [], milliseconds(delay)
    for unit in ("w", "d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, UNITS_MS[unit])
        if count:
            words.append(f"{count}{unit}")
    return f"{params.input_queue}_dead_{''.join(words) or '0s'}"


def _problems(params: Params) -> dict[str, str]:
    choices = {
        "preset": choice_problem(params.preset, PRESETS),
        "split": choice_problem(params.split, SPLITS),
        "binding_keys": choice_problem(params.binding_keys, BINDING_KEYS),
    }
    if any(choices.values()):
        return choices
    wanted = ["input_exchange", "input_queue", "dead_exchange"]
    wanted += ["dead_queue"] if params.keeps_unmatched else []
    wanted += ["return_exchange"] if params.return_exchange else []
    wanted += ["unmatched_exchange"] if params.keeps_unmatched and params.split != "none" else []
    problems = {name: name_problem(getattr(params, name), LONGEST_NAME_BYTES) for name in wanted}
    if params.split == "none" and params.unmatched_exchange:
        problems["unmatched_exchange"] = (
            "Only a loop with several timeouts can have unmatched messages."
        )
    for kind, own in (("exchange", "an exchange"), ("queue", "a queue")):
        names = [name for name in wanted if name.endswith(kind)]
        seen: set[str] = set()
        for name in names:
            if getattr(params, name) in seen:
                problems[name] = (
                    f"Another object has this name. Enter the name of {own} that no other object "
                    "uses."
                )
            seen.add(getattr(params, name))
    return {
        "timeouts": _timeouts_problem(params),
        "header": _header_problem(params),
        "delay": delay_problem(params.delay) if params.keeps_unmatched else "",
        **problems,
    }


def _timeouts_problem(params: Params) -> str:
    """Each queue has one TTL, and no message may wait in two, for it would come back twice."""
    timeouts = params.timeouts
    if params.split == "none":
        return (
            "A loop with one timeout uses the delay only. Remove the other timeouts."
            if timeouts
            else ""
        )
    if not timeouts:
        return "The timeouts are missing. Enter at least one."
    if len(timeouts) > MOST_TIMEOUTS:
        return f"At most {MOST_TIMEOUTS} timeouts."
    waits: dict[str, timedelta] = {}
    for timeout in timeouts:
        if problem := _timeout_problem(params, timeout):
            return problem
        if waits.setdefault(timeout.queue, timeout.delay) != timeout.delay:
            return (
                f"The dead queue “{timeout.queue}” has two different TTLs. Use one queue per TTL."
            )
    if params.split == "key":
        return _keys_problem(params)
    values = [timeout.match for timeout in timeouts]
    twice = sorted({value for value in values if values.count(value) > 1})
    return f"The value “{twice[0]}” has two timeouts." if twice else ""


def _timeout_problem(params: Params, timeout: Timeout) -> str:
    if problem := control_problem(timeout.match) or delay_problem(timeout.delay):
        return problem
    if problem := name_problem(timeout.queue, LONGEST_NAME_BYTES):
        return f"The dead queue of “{timeout.match}”: {problem}"
    if timeout.queue in (params.input_queue, params.dead_queue):
        return (
            f"The dead queue “{timeout.queue}” is another queue of this loop. Choose another name."
        )
    if params.split == "key":
        if problem := key_problem(timeout.match):
            return problem
        if timeout.match.split(".").count(ANY_WORDS) > MOST_ANY_WORDS:
            return (
                f"A key can contain “#” at most {MOST_ANY_WORDS} times (RabbitMQ 4.3.5 and later)."
            )
    return ""


def _keys_problem(params: Params) -> str:
    timeouts = params.timeouts
    for place, one in enumerate(timeouts):
        for other in timeouts[place + 1 :]:
            if one.queue != other.queue and overlap(one.match, other.match):
                return (
                    f"A key can match both “{one.match}” and “{other.match}”, so a message "
                    "would return twice. Change one of them."
                )
    if params.keeps_unmatched and stray_key(params) is None:
        return (
            "These keys match every message, so the dead queue for unmatched messages would stay "
            "empty."
        )
    return ""


def stray_key(params: Params) -> str | None:
    """A routing key that no timeout matches; None when they match all."""
    return key_for_none(timeout.match for timeout in params.timeouts)


def _header_problem(params: Params) -> str:
    if params.split != "header":
        return "Only timeouts by header use a header name." if params.header else ""
    if not params.header:
        return "The header name is missing."
    if params.header.startswith("x-") or params.header in ("CC", "BCC"):
        return "RabbitMQ reserves CC, BCC and headers that begin with “x-”. Choose another header."
    return header_problem(params.header)
