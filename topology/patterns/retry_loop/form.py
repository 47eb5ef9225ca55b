"""The form of a retry loop: one name gives all the others; texts <-> parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from topology.delays import format_delay
from topology.patterns.names import visibility_problem
from topology.patterns.pattern import ParamsError
from topology.patterns.retry_loop.params import (
    BINDING_KEYS,
    DEFAULT_DELAY,
    PRESETS,
    SPLITS,
    Params,
    Timeout,
    own_queue,
)
from topology.patterns.texts import choice_problem, read_delay, read_fields, read_json_list, refuse

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

FIELDS = read_fields(
    __file__,
    preset=PRESETS,
    return_path=RETURN_PATHS,
    split=SPLITS,
    unmatched=UNMATCHED,
    binding_keys={"": "default of the preset", **BINDING_KEYS},
)


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
    refuse({name: choice_problem(value, known)})
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
    # The article's names; the dead side's are literally its own where others may share
    # it.
    own = "" if preset == "article" and is_shared else f"{name}_"
    derived = {
        "input_exchange": f"{name}_inner_exch",
        "input_queue": f"{name}_input_q",
        "dead_exchange": f"{own}dead_letter_exchange",
        "dead_queue": f"{own}dead_letter_queue",
        "return_exchange": f"{own}dead_inner_exch",
        "unmatched_exchange": f"{own}dead_other_exch",
    }
    return {one: (stated[one] or derived[one]) if one in wanted else "" for one in NAMES}


def _read_timeouts(text: str) -> tuple[Timeout, ...]:
    if text.lstrip().startswith("["):
        return tuple(_read_timeout(entry) for entry in read_json_list(text, _is_entry, _NO_LIST))
    parts = [part.split(maxsplit=1) for part in text.split(",") if part.strip()]
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
