"""The options of a replay: one form for the page and the command, and their columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from delayboard.models import Order, ReplayBatch, TargetMode
from topology.content.text import count_text, is_encodable
from topology.definitions import find_own_queue_problem
from topology.delays import EXAMPLES, format_delay, parse_delay
from topology.forms.fields import DelayField
from topology.routing.matching.match import MAXIMUM_KEY_BYTES

MOST = 1_000_000_000
FASTEST = 100_000
YES = frozenset({"1", "on", "true", "yes"})
NO = frozenset({"", "0", "off", "false", "no"})
SECOND = timedelta(seconds=1)
STAGES = (
    "Enter stages such as “1% 5m, 10% 10m 2”: the share of the messages, how long it is observed, "
    "and how many may be dead-lettered again."
)
MOST_STAGES = 5
LONGEST_UNDO = timedelta(hours=1)
LONGEST_CANARY = timedelta(days=1)
STOP_AFTER = "Enter how many messages dead-lettered again pause the replay; 0 is no limit."
RATE = f"Enter 0.001 to {count_text(FASTEST)} messages per second. Empty means no limit."
NUMBER_ERRORS = ("invalid", "min_value", "max_value")


class OptionError(ValueError):
    """Options that are not valid for a replay.

    `problems` maps the name of an option to a sentence; the key "" is for all of them together.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(problems.values()))
        self.problems = dict(problems)


@dataclass(frozen=True)
class Options:
    """The options of a replay; the columns of its batch have the same names and explain each.

    `exchange` and `key` are the target of the mode `typed`; in the mode `delay`, `key` is the
    destination of the delay, "" for the queue where each message first failed. `rate` None is
    unlimited, `limit` None is all messages. Without `canary_seconds` the first ones are observed
    for one round of the longest retry; after a shorter time a user resumes. `stages` are those of
    `Stage`, in place of a canary.
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
    stages: tuple[tuple[float, int, int], ...] = ()
    undo_seconds: int = 0
    most_replays: int = 3
    stop_after: int = 10
    limit: int | None = None
    include_repeats: bool = False
    keep_counters: bool = False
    unwraps: bool = False

    @property
    def checked_values(self) -> tuple[object, ...]:
        """The options that verdicts depend on; the others control the sending."""
        target = (self.mode, self.exchange, self.key, self.topology_id, self.delay)
        sent = (self.include_repeats, self.keep_counters, self.unwraps)
        return (*target, self.most_replays, self.limit, *sent)


DEFAULTS = Options()


class _Number(forms.IntegerField):
    """A whole number in bounds; `sentence` is the answer to any other."""

    def __init__(self, least: int, most: int, sentence: str) -> None:
        wrong = dict.fromkeys(NUMBER_ERRORS, sentence)
        super().__init__(min_value=least, max_value=most, required=False, error_messages=wrong)

    def to_python(self, value: Any) -> int | None:
        return super().to_python((value or "").replace(",", "").strip())


class _Delay(DelayField):
    """A duration of more than nothing."""

    def clean(self, value: Any) -> Any:
        found = self.to_python(value)
        if found is not None and found <= timedelta(0):
            raise ValidationError(
                "The delay must be longer than zero. Enter a longer delay or choose another target."
            )
        return found

    def prepare_value(self, value: Any) -> Any:
        return format_delay(value) if isinstance(value, timedelta) else value


class _Seconds(DelayField):
    """A duration up to `longest`, as whole seconds, rounded up."""

    def __init__(self, longest: timedelta) -> None:
        super().__init__()
        self._longest = longest

    def clean(self, value: Any) -> Any:
        found = self.to_python(value)
        if found is not None and found > self._longest:
            raise ValidationError(f"The longest duration is {format_delay(self._longest)}.")
        return None if found is None else -(-found // SECOND)

    def prepare_value(self, value: Any) -> Any:
        return format_delay(value * SECOND) if isinstance(value, int) else value


@dataclass(frozen=True)
class Stage:
    """A first part of a replay: it is observed for some seconds before more is sent.

    `percent` is of all messages, with those of earlier stages. The replay pauses when more than
    `most_died` of them were dead-lettered again.
    """

    percent: float
    seconds: int
    most_died: int = 0

    def count(self, total: int) -> int:
        """How many of `total` messages are sent up to its end, at least one."""
        return max(1, math.ceil(total * self.percent / 100))

    def __str__(self) -> str:
        died = f" {self.most_died}" if self.most_died else ""
        return f"{self.percent:g}% {format_delay(SECOND * self.seconds)}{died}"


def suggest_stages(total: int, watch: timedelta) -> str:
    """Stages for so many messages, each observed for at least one retry round; "" for few."""
    seconds = min(max(-(-watch // SECOND), 60), LONGEST_CANARY // SECOND)
    percents = (1, 10) if total >= 100 else (10,) if total >= 10 else ()
    return ", ".join(str(Stage(percent, seconds)) for percent in percents)


class _Stages(forms.Field):
    """Stages as a person types them; stored as lists for JSON."""

    def clean(self, value: Any) -> Any:
        parts = [part.split() for part in (value or "").split(",") if part.strip()]
        try:
            stages = [_read_stage(*part) for part in parts]
        except (TypeError, ValueError):
            raise ValidationError(STAGES) from None
        percents = [stage.percent for stage in stages]
        if percents != sorted(set(percents)) or len(stages) > MOST_STAGES:
            raise ValidationError(
                f"Enter at most {MOST_STAGES} stages, each with a larger share than the one before."
            )
        return tuple(map(astuple, stages))

    def prepare_value(self, value: Any) -> Any:
        stages = [] if isinstance(value, str) else [str(Stage(*one)) for one in value or ()]
        return value if isinstance(value, str) else ", ".join(stages)


def _read_stage(share: str, *span_and_number: str) -> Stage:
    """Raises ValueError. A span may have several words: a number alone is no span."""
    spans = [one for one in span_and_number if not one.isdecimal()]
    span, (most_died, *others) = " ".join(spans), [*span_and_number[len(spans) :], "0"]
    if others and others != ["0"]:
        raise ValueError(share)
    percent, seconds = float(share.removesuffix("%")), -(-parse_delay(span) // SECOND)
    is_valid = 0 < percent < 100 and 0 < seconds <= LONGEST_CANARY // SECOND
    if not is_valid or not 0 <= int(most_died) <= MOST:
        raise ValueError(share)
    return Stage(percent, seconds, int(most_died))


class _Yes(forms.Field):
    def clean(self, value: Any) -> bool:
        text = (value or "").strip().lower()
        if text not in YES | NO:
            raise ValidationError("Enter yes or no.")
        return text in YES

    def prepare_value(self, value: Any) -> Any:
        return "yes" * value if isinstance(value, bool) else value


class _Rate(forms.FloatField):
    def clean(self, value: Any) -> Any:
        return super().clean((value or "").strip())

    def prepare_value(self, value: Any) -> Any:
        return f"{value:g}" if isinstance(value, float) else value


def _make_choice(kind: type[TargetMode | Order]) -> forms.Field:
    sentence = f"Choose one of these: {', '.join(kind.values)}."
    return forms.TypedChoiceField(
        choices=kind.choices,
        coerce=kind,
        required=False,
        error_messages={"invalid_choice": sentence},
    )


class OptionsForm(forms.Form):
    """The texts of the options by their names; what is missing or empty is as by default.

    `delay`, `canary_seconds` and `undo_seconds` are durations as `parse_delay` reads them.
    `options` is set when the form is valid.
    """

    mode = _make_choice(TargetMode)
    # Names may begin and end with spaces.
    exchange = forms.CharField(required=False, strip=False)
    key = forms.CharField(required=False, strip=False)
    topology_id = _Number(1, MOST, "Choose a topology.")
    delay = _Delay()
    order = _make_choice(Order)
    rate = _Rate(
        min_value=0.001,
        max_value=FASTEST,
        required=False,
        error_messages=dict.fromkeys(NUMBER_ERRORS, RATE),
    )
    canary = _Number(0, MOST, "Enter a number of messages; 0 means no canary.")
    canary_seconds = _Seconds(LONGEST_CANARY)
    canary_goes_on = _Yes(required=False)
    stages = _Stages(required=False)
    undo_seconds = _Seconds(LONGEST_UNDO)
    most_replays = _Number(1, 1000, "Enter a maximum number of replays from 1 to 1000.")
    stop_after = _Number(0, MOST, STOP_AFTER)
    limit = _Number(1, MOST, "Enter 1 or more; empty means all messages.")
    include_repeats = _Yes(required=False)
    keep_counters = _Yes(required=False)
    unwraps = _Yes(required=False)

    def clean(self) -> None:
        found = {
            name: value for name, value in self.cleaned_data.items() if value not in ("", None)
        }
        self.options = Options(**found)
        if self.options.canary and self.options.stages:
            self.add_error("stages", "Enter stages or a number of canary messages, not both.")
        if self.options.canary_seconds and self.options.stages:
            self.add_error("stages", "A stage states its own time. Leave that of the canary empty.")
        stop_after = self.options.stop_after
        if stop_after and any(died >= stop_after for *_, died in self.options.stages):
            self.add_error(
                "stages",
                f"The replay pauses when {stop_after} messages are dead-lettered again. Allow "
                "fewer in each stage.",
            )
        is_staged = self.options.canary or self.options.stages
        if not is_staged and (self.options.canary_seconds or self.options.canary_goes_on):
            name = "canary_seconds" if self.options.canary_seconds else "canary_goes_on"
            self.add_error(name, "Enter a number of canary messages, or leave this empty.")
        for name, why in _find_target_problems(self.options, self.errors).items():
            if name not in self.errors:
                self.add_error(name, why)

    @property
    def problems(self) -> dict[str, str]:
        """A sentence by the name of each wrong option."""
        return {name: " ".join(map(str, errors)) for name, errors in self.errors.items()}

    @property
    def texts(self) -> dict[str, str]:
        """What its fields show."""
        shown = {field.name: field.value() for field in self}
        return {name: "" if value is None else str(value) for name, value in shown.items()}


def read_options(values: Mapping[str, str]) -> Options:
    """Options from texts by their names. Raises OptionError with a sentence for each wrong one."""
    form = OptionsForm(dict(values))
    if problems := form.problems:
        raise OptionError(problems)
    return form.options


def format_options(options: Options) -> dict[str, str]:
    """The inverse of `read_options`: the texts of a form."""
    return OptionsForm(initial=asdict(options)).texts


def read_batch_options(batch: ReplayBatch) -> Options:
    """The options that a batch was prepared with."""
    found = {option.name: getattr(batch, option.name) for option in fields(Options)}
    found |= {"mode": TargetMode(batch.mode), "order": Order(batch.order)}
    if batch.stages:
        # A started stage has its own numbers there.
        found |= {"canary": 0, "canary_seconds": 0}
    return Options(**{**found, "stages": tuple(map(tuple, batch.stages))})


def read_stages(text: str) -> list[Stage]:
    """The stages of a text that is valid."""
    return [Stage(*one) for one in _Stages().clean(text)]


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


def _find_target_problems(options: Options, problems: Mapping[str, object]) -> dict[str, str]:
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
        problems["topology_id"] = "Choose the topology whose delay they go through."
    if options.delay is None:
        problems["delay"] = f"Enter a delay such as {EXAMPLES}."
    if options.exchange:
        problems["exchange"] = "A delay leads to a destination: type it as the key alone."
    elif options.key:
        problems |= find_target_problems("", options.key)
    return problems
