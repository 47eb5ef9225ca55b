"""How a replay goes: read from texts, as a form or a command has them; pure but for the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

from delayboard.dead_letters.replay.batch.option_values import (
    make_choice_parser,
    make_number_parser,
    make_seconds_parser,
    parse_rate,
    parse_wait,
    parse_yes,
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
MOST_REPLAYS = "Enter a maximum number of replays from 1 to 1000."
STOP_AFTER = "Enter how many messages dead-lettered again pause the replay; 0 is no limit."


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
    found: dict[str, Any] = {}
    for name, _, form_name, parse in _FIELDS:
        text = values.get(form_name, "")
        try:
            # Names may begin and end with spaces.
            if text := text if parse is str else text.strip():
                found[name] = parse(text)
        except ValueError as error:
            problems[form_name] = str(error)
    options = Options(**found)
    problems = {**_find_target_problems(options, problems), **problems}
    if problems:
        raise OptionError(problems)
    return options


def format_options(options: Options) -> dict[str, str]:
    """The inverse of `read_options`: the texts of a form."""
    return {field.form_name: _format(field.name, getattr(options, field.name)) for field in _FIELDS}


def make_columns(options: Options) -> dict[str, Any]:
    """The same as the columns of a batch."""
    found = {field.column: getattr(options, field.name) for field in _FIELDS}
    waits = options.delay
    return {**found, "delay_ms": None if waits is None else milliseconds(waits)}


def read_batch_options(batch: ReplayBatch) -> Options:
    """The options that a batch was prepared with."""
    found = {field.name: getattr(batch, field.column) for field in _FIELDS}
    waits = None if batch.delay_ms is None else timedelta(milliseconds=batch.delay_ms)
    kinds = {"mode": TargetMode(batch.target_mode), "order": Order(batch.order)}
    return Options(**{**found, **kinds, "delay": waits})


def find_target_problems(exchange: str, key: str) -> dict[str, str]:
    """Why nothing can be sent to this exchange and key, by the field; {} when it can."""
    problems = {}
    for name, text in (("exchange", exchange), ("key", key)):
        if len(text.encode("utf-8", "replace")) > MAXIMUM_KEY_BYTES:
            problems[name] = (
                f"This has more than {MAXIMUM_KEY_BYTES} bytes, which AMQP does not allow."
            )
        elif not is_encodable(text):
            problems[name] = "This name contains an invalid character."
    if not exchange and not key:
        problems["key"] = (
            "Type an exchange and a key, or the name of a queue as the key without an exchange."
        )
    if not exchange and is_tap(key):
        problems["key"] = "This queue is a tap of Delayboard. Enter another queue."
    return problems


def _find_target_problems(options: Options, problems: Mapping[str, str]) -> dict[str, str]:
    match options.mode:
        case TargetMode.TYPED:
            return find_target_problems(options.exchange, options.key)
        case TargetMode.DELAY:
            return _find_delay_problems(options)
        case _ if "mode" not in problems and (options.exchange or options.key):
            name = "exchange" if options.exchange else "key"
            return {name: "Select the target “this exchange and key”, or leave both fields empty."}
    return {}


def _find_delay_problems(options: Options) -> dict[str, str]:
    problems = {}
    if options.topology_id is None:
        problems["topology"] = "Choose the topology whose delay they go through."
    if options.delay is None:
        problems["delay"] = "Enter a delay, such as 30s, 5m or 1h30m."
    if options.exchange:
        problems["exchange"] = "A delay leads to a destination: type it as the key alone."
    elif options.key:
        problems |= find_target_problems("", options.key)
    return problems


def _format(name: str, value: Any) -> str:
    match value:
        case None | False:
            return ""
        case True:
            return "yes"
        case Enum():
            return str(value.value)
        case float():
            return f"{value:g}"
        case timedelta():
            return format_delay(value)
    return format_delay(value * SECOND) if name.endswith("_seconds") else str(value)


class _Field(NamedTuple):
    """An option, its column, its name in a form, and how its text is read."""

    name: str
    column: str
    form_name: str
    parse: Callable[[str], Any]


def _make_field(name: str, parse: Callable[[str], Any], *, column: str = "") -> _Field:
    return _Field(name, column or name, name, parse)


_FIELDS = (
    _make_field("mode", make_choice_parser(TargetMode), column="target_mode"),
    _make_field("exchange", str, column="target_exchange"),
    _make_field("key", str, column="target_key"),
    _Field(
        "topology_id",
        "topology_id",
        "topology",
        make_number_parser(1, MOST, "Choose one of the list."),
    ),
    _make_field("delay", parse_wait, column="delay_ms"),
    _make_field("order", make_choice_parser(Order)),
    _make_field("rate", parse_rate),
    _make_field("canary", make_number_parser(0, MOST, "Say how many go first; 0 is none.")),
    _make_field("canary_seconds", make_seconds_parser(LONGEST_CANARY)),
    _make_field("canary_goes_on", parse_yes),
    _make_field("undo_seconds", make_seconds_parser(LONGEST_UNDO)),
    _make_field("most_replays", make_number_parser(1, 1000, MOST_REPLAYS)),
    _make_field("stop_after", make_number_parser(0, MOST, STOP_AFTER)),
    _make_field(
        "limit", make_number_parser(1, MOST, "Say how many at most: 1 or more; empty is all.")
    ),
    _make_field("include_repeats", parse_yes),
)
