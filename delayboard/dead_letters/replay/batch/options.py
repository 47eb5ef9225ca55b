"""How a replay goes: read from texts, as a form or a command has them; pure but for the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

from django import forms
from django.core.exceptions import ValidationError

from delayboard.models import Order, ReplayBatch, TargetMode
from topology.content.text import is_encodable
from topology.definitions import find_own_queue_problem
from topology.delays import DelayError, format_delay, milliseconds, parse_delay
from topology.routing.matching.match import MAXIMUM_KEY_BYTES

MOST = 1_000_000_000
FASTEST = 100_000
LONGEST_TEXT = 40
YES = frozenset({"1", "on", "true", "yes"})
NO = frozenset({"", "0", "off", "false", "no"})
SECOND = timedelta(seconds=1)
LONGEST_UNDO = timedelta(hours=1)
LONGEST_CANARY = timedelta(days=1)
MOST_REPLAYS = "Enter a maximum number of replays from 1 to 1000."
STOP_AFTER = "Enter how many messages dead-lettered again pause the replay; 0 is no limit."


class OptionError(ValueError):
    """Options that are not valid for a replay.

    `problems` maps the name of an option to a sentence; the key "" is for all of them together.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(problems.values()))
        self.problems = dict(problems)


@dataclass(frozen=True)
class Options:
    """The options of a replay; the columns of its batch explain each.

    `exchange` and `key` are the target of the mode `typed`; in the mode `delay`, `key` is the
    destination of the delay, "" for the queue where each message first failed. `rate` None is
    unlimited, `limit` None is all messages. Without `canary_seconds` the first ones are observed
    for one round of the longest retry.
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
        """The options that verdicts depend on; the others control the sending."""
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
    for name, _, form_name, field in _OPTIONS:
        text = values.get(form_name, "")
        try:
            value = field.clean(text if isinstance(field, forms.CharField) else text.strip())
            if value not in field.empty_values:
                found[name] = value
        except ValidationError as error:
            problems[form_name] = " ".join(error.messages)
    options = Options(**found)
    problems = {**_find_target_problems(options, problems), **problems}
    if problems:
        raise OptionError(problems)
    return options


def format_options(options: Options) -> dict[str, str]:
    """The inverse of `read_options`: the texts of a form."""
    return {
        option.form_name: _format(option.name, getattr(options, option.name)) for option in _OPTIONS
    }


def make_columns(options: Options) -> dict[str, Any]:
    """The same as the columns of a batch."""
    found = {option.column: getattr(options, option.name) for option in _OPTIONS}
    waits = options.delay
    return {**found, "delay_ms": None if waits is None else milliseconds(waits)}


def read_batch_options(batch: ReplayBatch) -> Options:
    """The options that a batch was prepared with."""
    found = {option.name: getattr(batch, option.column) for option in _OPTIONS}
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
    if not exchange and (problem := find_own_queue_problem(key)):
        problems["key"] = problem
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


class _Number(forms.IntegerField):
    """A whole number in bounds; `sentence` is the answer to any other."""

    def __init__(self, least: int, most: int, sentence: str) -> None:
        wrong = dict.fromkeys(("invalid", "min_value", "max_value"), sentence)
        super().__init__(min_value=least, max_value=most, required=False, error_messages=wrong)

    def to_python(self, value: Any) -> int | None:
        return super().to_python(value.replace(",", ""))


class _Duration(forms.Field):
    """A duration of more than nothing."""

    def to_python(self, value: Any) -> timedelta | None:
        if not value:
            return None
        if len(value) > LONGEST_TEXT:
            raise ValidationError("This is not a duration. Enter a duration such as 90s or 1h30m.")
        try:
            return parse_delay(value)
        except DelayError as error:
            raise ValidationError(str(error)) from None

    def clean(self, value: Any) -> Any:
        found = self.to_python(value)
        if found is not None and found <= timedelta(0):
            raise ValidationError(
                "The delay must be longer than zero. Enter a longer delay or choose another target."
            )
        return found


class _Seconds(_Duration):
    """A duration up to `longest`, as whole seconds, rounded up."""

    def __init__(self, longest: timedelta) -> None:
        super().__init__(required=False)
        self._longest = longest

    def clean(self, value: Any) -> Any:
        found = self.to_python(value)
        if found is not None and found > self._longest:
            raise ValidationError(f"The longest duration is {format_delay(self._longest)}.")
        return None if found is None else -(-found // SECOND)


class _Yes(forms.Field):
    def clean(self, value: Any) -> bool:
        if value.lower() not in YES | NO:
            raise ValidationError("Enter yes or no.")
        return value.lower() in YES


def _make_choice(kind: type[TargetMode | Order]) -> forms.Field:
    sentence = f"Choose one of these: {', '.join(kind.values)}."
    return forms.TypedChoiceField(
        choices=kind.choices,
        coerce=kind,
        required=False,
        error_messages={"invalid_choice": sentence},
    )


class _Option(NamedTuple):
    """An option, its column, its name in a form, and the field that reads its text."""

    name: str
    column: str
    form_name: str
    field: forms.Field


def _make_option(name: str, field: forms.Field, *, column: str = "", form: str = "") -> _Option:
    return _Option(name, column or name, form or name, field)


_RATE = f"Enter 0.001 to {FASTEST:,} messages per second. Empty means no limit."
_OPTIONS = (
    _make_option("mode", _make_choice(TargetMode), column="target_mode"),
    # Names may begin and end with spaces.
    _make_option(
        "exchange", forms.CharField(required=False, strip=False), column="target_exchange"
    ),
    _make_option("key", forms.CharField(required=False, strip=False), column="target_key"),
    _make_option("topology_id", _Number(1, MOST, "Choose a topology."), form="topology"),
    _make_option("delay", _Duration(required=False), column="delay_ms"),
    _make_option("order", _make_choice(Order)),
    _make_option(
        "rate",
        forms.FloatField(
            min_value=0.001,
            max_value=FASTEST,
            required=False,
            error_messages=dict.fromkeys(("invalid", "min_value", "max_value"), _RATE),
        ),
    ),
    _make_option("canary", _Number(0, MOST, "Enter a number of messages; 0 means no canary.")),
    _make_option("canary_seconds", _Seconds(LONGEST_CANARY)),
    _make_option("canary_goes_on", _Yes(required=False)),
    _make_option("undo_seconds", _Seconds(LONGEST_UNDO)),
    _make_option("most_replays", _Number(1, 1000, MOST_REPLAYS)),
    _make_option("stop_after", _Number(0, MOST, STOP_AFTER)),
    _make_option("limit", _Number(1, MOST, "Enter 1 or more; empty means all messages.")),
    _make_option("include_repeats", _Yes(required=False)),
)
FORM_NAMES = tuple(option.form_name for option in _OPTIONS)
