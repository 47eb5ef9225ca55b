"""How a replay goes: read from texts, as a form or a command has them; pure but for the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from delayboard.dead_letters.replay.batch.option_values import (
    choice,
    delay,
    number,
    rate,
    seconds,
    yes,
)
from delayboard.models import Order, ReplayBatch, TargetMode
from topology.content.text import is_encodable
from topology.definitions import is_tap
from topology.delays import format_delay, milliseconds
from topology.routing.matching.match import MAXIMUM_KEY_BYTES

MOST = 1_000_000_000
SECOND = timedelta(seconds=1)
LONGEST_UNDO = timedelta(hours=1)
LONGEST_CANARY = timedelta(days=1)


class OptionError(ValueError):
    """Options that describe no replay.

    `problems` maps the name of an option to a sentence; "" stands for the whole.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(problems.values()))
        self.problems = dict(problems)


@dataclass(frozen=True)
class Options:
    """What can be chosen of a replay; the columns of its batch say what each means.

    `exchange` and `key` are the target of the mode `typed`; in the mode `delay`, `key` is where
    the delay leads, "" for where each message first failed. `rate` None is as fast as it goes,
    `limit` None is all. Without `canary_seconds` the first ones are watched for one round of the
    longest retry.
    """

    mode: TargetMode = TargetMode.DEFAULT
    exchange: str = ""
    key: str = ""
    topology_id: int | None = None
    delay: timedelta | None = None
    order: Order = Order.OLDEST
    rate: float | None = None
    canary: int = 0
    canary_seconds: int = 0
    canary_goes_on: bool = False
    undo_seconds: int = 0
    most_replays: int = 3
    stop_after: int = 10
    limit: int | None = None
    include_repeats: bool = False

    @property
    def checked_values(self) -> tuple[object, ...]:
        """What verdicts depend on; the rest says how the sending goes."""
        target = (self.mode, self.exchange, self.key, self.topology_id, self.delay)
        return (*target, self.most_replays, self.limit, self.include_repeats)


DEFAULTS = Options()


def read_options(values: Mapping[str, str]) -> Options:
    """Options from texts by their names; what is missing or empty is as by default.

    The topology is its number in `topology`; `delay`, `canary_seconds` and `undo_seconds` are
    durations such as 90, 5m or 1h30m. Raises OptionError with a sentence for each wrong one.
    """
    problems: dict[str, str] = {}

    @contextmanager
    def noting(name: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            problems[name] = str(error)

    found: dict[str, Any] = {"exchange": values.get("exchange", ""), "key": values.get("key", "")}
    for name, (field, parse) in _FIELDS.items():
        with noting(name):
            if text := values.get(name, "").strip():
                found[field] = parse(text)
    options = Options(**found)
    problems = {**_find_target_problems(options, problems), **problems}
    if problems:
        raise OptionError(problems)
    return options


def format_options(options: Options) -> dict[str, str]:
    """The inverse of `read`: the texts of a form."""
    waits = "" if options.delay is None else format_delay(options.delay)
    return {
        "mode": options.mode.value,
        "exchange": options.exchange,
        "key": options.key,
        "topology": "" if options.topology_id is None else str(options.topology_id),
        "delay": waits,
        "order": options.order.value,
        "rate": "" if options.rate is None else f"{options.rate:g}",
        "canary": str(options.canary),
        "canary_seconds": format_delay(options.canary_seconds * SECOND),
        "canary_goes_on": "yes" if options.canary_goes_on else "",
        "undo_seconds": format_delay(options.undo_seconds * SECOND),
        "most_replays": str(options.most_replays),
        "stop_after": str(options.stop_after),
        "limit": "" if options.limit is None else str(options.limit),
        "include_repeats": "yes" if options.include_repeats else "",
    }


def make_columns(options: Options) -> dict[str, Any]:
    """The same as the columns of a batch."""
    return {
        "target_mode": options.mode,
        "target_exchange": options.exchange,
        "target_key": options.key,
        "topology_id": options.topology_id,
        "delay_ms": None if options.delay is None else milliseconds(options.delay),
        "order": options.order,
        "rate": options.rate,
        "canary": options.canary,
        "canary_seconds": options.canary_seconds,
        "canary_goes_on": options.canary_goes_on,
        "undo_seconds": options.undo_seconds,
        "most_replays": options.most_replays,
        "stop_after": options.stop_after,
        "limit": options.limit,
        "include_repeats": options.include_repeats,
    }


def read_batch_options(batch: ReplayBatch) -> Options:
    """The options that a batch was prepared with."""
    waits = None if batch.delay_ms is None else timedelta(milliseconds=batch.delay_ms)
    return Options(
        mode=TargetMode(batch.target_mode),
        exchange=batch.target_exchange,
        key=batch.target_key,
        topology_id=batch.topology_id,
        delay=waits,
        order=Order(batch.order),
        rate=batch.rate,
        canary=batch.canary,
        canary_seconds=batch.canary_seconds,
        canary_goes_on=batch.canary_goes_on,
        undo_seconds=batch.undo_seconds,
        most_replays=batch.most_replays,
        stop_after=batch.stop_after,
        limit=batch.limit,
        include_repeats=batch.include_repeats,
    )


def find_target_problems(exchange: str, key: str) -> dict[str, str]:
    """Why nothing can be sent to this exchange and key, by the field; {} when it can."""
    problems = {}
    for name, text in (("exchange", exchange), ("key", key)):
        if len(text.encode("utf-8", "replace")) > MAXIMUM_KEY_BYTES:
            problems[name] = (
                f"This has more than {MAXIMUM_KEY_BYTES} bytes, which AMQP cannot lease."
            )
        elif not is_encodable(text):
            problems[name] = "This holds a sign that no name can lease."
    if not exchange and not key:
        problems["key"] = (
            "Type an exchange and a key, or the name of a queue as the key without an exchange."
        )
    if not exchange and is_tap(key):
        problems["key"] = "That is Delayboard's own tap: it holds copies, and no consumer reads it."
    return problems


def _find_target_problems(options: Options, problems: Mapping[str, str]) -> dict[str, str]:
    match options.mode:
        case TargetMode.TYPED:
            return find_target_problems(options.exchange, options.key)
        case TargetMode.DELAY:
            return _find_delay_problems(options)
        case _ if "mode" not in problems and (options.exchange or options.key):
            name = "exchange" if options.exchange else "key"
            return {name: "An exchange and a key are for the target “this exchange and key” only."}
    return {}


def _find_delay_problems(options: Options) -> dict[str, str]:
    problems = {}
    if options.topology_id is None:
        problems["topology"] = "Choose the topology whose delay they go through."
    if options.delay is None:
        problems["delay"] = "Say how long they wait, such as 30s, 5m or 1h30m."
    if options.exchange:
        problems["exchange"] = "A delay leads to a destination: type it as the key alone."
    elif options.key:
        problems |= find_target_problems("", options.key)
    return problems


# By the name in a form: the option, and how its text is read.
_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "mode": ("mode", choice(TargetMode, ", ".join(TargetMode.values))),
    "topology": ("topology_id", number(1, MOST, "Choose one of the list.")),
    "delay": ("delay", delay),
    "order": ("order", choice(Order, ", ".join(Order.values))),
    "rate": ("rate", rate),
    "canary": ("canary", number(0, MOST, "Say how many go first; 0 is none.")),
    "canary_seconds": ("canary_seconds", seconds(LONGEST_CANARY)),
    "canary_goes_on": ("canary_goes_on", yes),
    "undo_seconds": ("undo_seconds", seconds(LONGEST_UNDO)),
    "most_replays": (
        "most_replays",
        number(1, 1000, "Say after how many replays a message is not sent again: 1 to 1000."),
    ),
    "stop_after": (
        "stop_after",
        number(0, MOST, "Say after how many that died again it stops itself; 0 is never."),
    ),
    "limit": ("limit", number(1, MOST, "Say how many at most: 1 or more; empty is all.")),
    "include_repeats": ("include_repeats", yes),
}
