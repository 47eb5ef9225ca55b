"""The form of a retry loop: one name gives all the others; texts <-> parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from topology.delays import format_delay
from topology.patterns.names import visibility_problem
from topology.patterns.pattern import Field, ParamsError
from topology.patterns.retry_loop.params import (
    BINDING_KEYS,
    DEFAULT_DELAY,
    PRESETS,
    SPLITS,
    Params,
    Timeout,
    own_queue,
)
from topology.patterns.texts import read_delay, read_json_list

RETURN_PATHS = {
    "input": "through the input exchange",
    "separate": "through a separate return exchange, to this queue only",
}
UNMATCHED = {
    "waits": "the message waits for the delay above",
    "lost": "RabbitMQ drops the message",
}
NAMES = (
    "input_exchange",
    "input_queue",
    "dead_exchange",
    "dead_queue",
    "return_exchange",
    "unmatched_exchange",
)
_NO_LIST = {"timeouts": "A JSON list of [key, delay] or [key, delay, dead queue]."}
_DEFAULT = "Empty: derived from the name."

FIELDS = (
    Field("name", "Name", "Default for the empty names below.", required=False),
    Field(
        "delay",
        "Delay",
        "Waiting time of a rejected message: 90s, 5m, 1h30m or 250ms. Empty: 1m.",
        "1m",
        required=False,
    ),
    Field(
        "preset",
        "Preset",
        "Arguments of the exchanges and queues.",
        "durable",
        choices=tuple(PRESETS.items()),
        rare=True,
    ),
    Field(
        "return_path",
        "Return",
        "Choose the separate exchange if several queues are bound to the input exchange.",
        "input",
        choices=tuple(RETURN_PATHS.items()),
        required=False,
        rare=True,
    ),
    Field(
        "split",
        "Timeouts",
        "One or several.",
        "none",
        choices=tuple(SPLITS.items()),
        required=False,
        rare=True,
    ),
    Field("header", "Header", "Header name, for timeouts by header.", required=False, rare=True),
    Field(
        "timeouts",
        "Several timeouts",
        "Keys (“*” and “#” are wildcards) or values of the header, each with its delay: mail.# "
        "30s, report.* 5m. Or a JSON list of [key, delay] or [key, delay, dead queue].",
        required=False,
        rare=True,
    ),
    Field(
        "unmatched",
        "Unmatched messages",
        "For several timeouts.",
        "waits",
        choices=tuple(UNMATCHED.items()),
        required=False,
        rare=True,
    ),
    Field("input_exchange", "Input exchange", _DEFAULT, required=False, rare=True),
    Field("input_queue", "Input queue", _DEFAULT, required=False, rare=True),
    Field("dead_exchange", "Dead exchange", _DEFAULT, required=False, rare=True),
    Field("dead_queue", "Dead queue", _DEFAULT, required=False, rare=True),
    Field(
        "return_exchange",
        "Return exchange",
        f"For a separate return. {_DEFAULT}",
        required=False,
        rare=True,
    ),
    Field(
        "unmatched_exchange",
        "Exchange for unmatched messages",
        f"For several timeouts. {_DEFAULT}",
        required=False,
        rare=True,
    ),
    Field(
        "binding_keys",
        "Binding keys",
        "Fanout and headers exchanges ignore them.",
        choices=(("", "default of the preset"), *BINDING_KEYS.items()),
        required=False,
        rare=True,
    ),
)


def derived_names(name: str, preset: str, *, is_shared: bool) -> dict[str, str]:
    """The article's names; the dead side's are literally its own where others may share it."""
    own = "" if preset == "article" and is_shared else f"{name}_"
    return {
        "input_exchange": f"{name}_inner_exch",
        "input_queue": f"{name}_input_q",
        "dead_exchange": f"{own}dead_letter_exchange",
        "dead_queue": f"{own}dead_letter_queue",
        "return_exchange": f"{own}dead_inner_exch",
        "unmatched_exchange": f"{own}dead_other_exch",
    }


def parse(values: Mapping[str, str]) -> Params:
    preset = values.get("preset") or "durable"
    return_path = _read_choice(values, "return_path", RETURN_PATHS)
    split = values.get("split") or "none"
    is_lost = split != "none" and _read_choice(values, "unmatched", UNMATCHED) == "lost"
    unused = {
        "return_exchange": return_path != "separate",
        "unmatched_exchange": is_lost or split == "none",
        "dead_queue": is_lost,
    }
    names = _read_names(values, preset, unused, is_shared=return_path == "input")
    return Params(
        **names,
        delay=read_delay(values.get("delay") or format_delay(DEFAULT_DELAY)),
        preset=preset,
        split=split,
        header=values.get("header", ""),
        timeouts=_read_timeouts(values.get("timeouts", "")),
        binding_keys=values.get("binding_keys", ""),
    )


def store(params: Params) -> dict[str, str]:
    return {
        "name": "",
        "preset": params.preset,
        "delay": format_delay(params.delay) if params.keeps_unmatched else "",
        "return_path": "separate" if params.return_exchange else "input",
        "split": params.split,
        "header": params.header,
        "timeouts": _write_timeouts(params),
        "unmatched": "waits" if params.keeps_unmatched else "lost",
        **{name: getattr(params, name) for name in NAMES},
        "binding_keys": params.binding_keys,
    }


def _read_choice(values: Mapping[str, str], name: str, known: Mapping[str, str]) -> str:
    value = values.get(name) or next(iter(known))
    if value not in known:
        raise ParamsError({name: f"Choose one of {', '.join(known)}."})
    return value


def _read_names(
    values: Mapping[str, str], preset: str, unused: Mapping[str, bool], *, is_shared: bool
) -> dict[str, str]:
    wanted = [name for name in NAMES if not unused.get(name)]
    stated = {name: values.get(name, "") for name in NAMES}
    name = values.get("name", "")
    if not name and not all(stated[one] for one in wanted):
        raise ParamsError({"name": "A name is missing. Enter the name, or all object names below."})
    if wrong := visibility_problem(name):
        raise ParamsError({"name": wrong})
    if idle := [one for one in NAMES if one not in wanted and stated[one]]:
        raise ParamsError(
            dict.fromkeys(
                idle, "This object does not exist with these choices. Leave the field empty."
            )
        )
    derived = derived_names(name, preset, is_shared=is_shared)
    return {one: (stated[one] or derived[one]) if one in wanted else "" for one in NAMES}


def _read_timeouts(text: str) -> tuple[Timeout, ...]:
    if text.lstrip().startswith("["):
        return tuple(_read_timeout(entry) for entry in read_json_list(text, _is_entry, _NO_LIST))
    parts = [part.split() for part in text.split(",") if part.strip()]
    if any(len(part) != 2 for part in parts):
        raise ParamsError(
            {"timeouts": "Write each timeout as a key and a delay, separated by commas."}
        )
    return tuple(_read_timeout(part) for part in parts)


def _is_entry(entry: object) -> bool:
    is_list = isinstance(entry, list) and len(entry) in (2, 3)
    return is_list and all(isinstance(text, str) for text in entry)  # type: ignore[attr-defined]


def _read_timeout(entry: Sequence[str]) -> Timeout:
    match, delay, *queue = entry
    return Timeout(match, read_delay(delay, "timeouts"), *queue)


def _write_timeouts(params: Params) -> str:
    """Key and delay, or JSON where a key is odd or a queue's name not what it would be."""
    if all(
        re.fullmatch(r"[^\s,\[]+", one.match) and one.queue == own_queue(params, one.delay)
        for one in params.timeouts
    ):
        return ", ".join(f"{one.match} {format_delay(one.delay)}" for one in params.timeouts)
    entries = [[one.match, format_delay(one.delay), one.queue] for one in params.timeouts]
    return json.dumps(entries, ensure_ascii=False)
