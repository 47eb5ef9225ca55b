"""The options of a replay as a form shows them, and as it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest

from delayboard.dead_letters.replay import options
from delayboard.dead_letters.replay.options import OptionError, Options
from delayboard.models import Order, ReplayBatch, TargetMode
from topology.delays import DURATION_HELP, format_delay
from topology.models import State, Topology

UNKNOWN_TOPOLOGY = "Select an applied topology of this broker."
# Mode -> the fields of its target that a form sends; those of other modes are hidden.
_TARGETS = {
    TargetMode.TYPED: ("exchange", "key"),
    TargetMode.DELAY: ("topology_id", "delay", "key"),
}
_TARGET_FIELDS = ("exchange", "key", "topology_id", "delay")
_OTHERS = ("mode", *_TARGET_FIELDS, "limit", "include_repeats")
_REST = tuple(name for name in options.OptionsForm.base_fields if name not in _OTHERS)


def is_sent(request: HttpRequest) -> bool:
    """Whether the form came along."""
    return "mode" in request.POST


def texts(request: HttpRequest, batch: ReplayBatch) -> dict[str, str]:
    """What was typed, by the names of the options; of the target what its mode has."""
    sent = request.POST
    mode = sent.get("mode", "")
    known = _TARGETS.get(TargetMode(mode), ()) if mode in TargetMode.values else _TARGET_FIELDS
    found = {name: sent.get(name, "") for name in ("mode", *known)}
    found |= {name: sent.get(name, "") for name in _REST}
    if mode == TargetMode.DELAY:
        found["key"] = sent.get("destination", "")
    if batch.limit is not None:
        found["limit"] = str(batch.limit)
    # Only the fields of the chosen way to begin count.
    match sent.get("plan"):
        case "once":
            found |= {"canary": "", "canary_seconds": "", "stages": "", "canary_goes_on": ""}
        case "canary":
            found["stages"] = ""
        case "suggested":
            found |= {"canary": "", "canary_seconds": "", "stages": sent.get("suggested", "")}
        case "stages":
            found |= {"canary": "", "canary_seconds": ""}
    # Only a draft with repeats has this question.
    found["include_repeats"] = (
        sent.get("include_repeats", "") if batch.repeats else "yes" * batch.include_repeats
    )
    return found


def sent_options(request: HttpRequest, batch: ReplayBatch) -> Options:
    """Raises OptionError."""
    sent = texts(request, batch)
    if request.POST.get("plan") == "canary" and sent["canary"].strip(" 0") == "":
        raise OptionError({"canary": "Enter how many messages the canary has, at least 1."})
    found = options.read_options(sent)
    if found.topology_id is not None and not _topologies(batch).filter(pk=found.topology_id):
        raise OptionError({"topology_id": UNKNOWN_TOPOLOGY})
    return found


def options_of(batch: ReplayBatch) -> dict[str, Any]:
    """The form as the batch has it."""
    known = options.read_batch_options(batch)
    return _form(batch, options.format_options(known), {}) | {"words": words(known)}


def plan_of(
    batch: ReplayBatch, values: Mapping[str, str], watch: timedelta, now: datetime, asked: str
) -> dict[str, Any]:
    """How a draft may begin: the choice that is made, the suggested stages, until when each of
    them, or a canary, would be observed if the replay were started now.

    Of many messages the suggested stages are chosen until somebody `asked` for another way, or
    asked a second person to approve one.
    """
    begins_at = now + options.SECOND * batch.undo_seconds
    suggested = options.suggest_stages(batch.pending, watch)
    stages = []
    for stage in options.read_stages(suggested):
        begins_at += options.SECOND * stage.seconds
        stages.append((stage, stage.count(batch.to_send), begins_at))
    span = options.SECOND * batch.canary_seconds or watch
    chosen, canary = values.get("stages", ""), values.get("canary", "")
    has_canary = canary not in ("", "0") or asked == "canary"
    sent = "stages" if chosen else "canary" if has_canary else "once"
    is_open = sent == "once" and asked != "once" and not batch.requested_by_id
    if suggested and (chosen == suggested or is_open):
        sent = "suggested"
    return {
        "chosen": sent,
        "suggested": suggested,
        "stages": stages,
        "canary": canary if canary.strip(" 0") else str(min(10, max(1, batch.to_send // 10))),
        "canary_until": now + options.SECOND * batch.undo_seconds + span,
    }


def options_sent(request: HttpRequest, batch: ReplayBatch, error: OptionError) -> dict[str, Any]:
    """The form as it was typed, with what is wrong in it."""
    return _form(batch, texts(request, batch), error.problems)


def _form(
    batch: ReplayBatch, values: Mapping[str, str], problems: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "values": values,
        "problems": problems,
        "duration_help": DURATION_HELP,
        "modes": [(str(mode), str(mode.label)) for mode in TargetMode],
        "orders": [(str(order), str(order.label)) for order in Order],
        "topologies": [
            (str(row.pk), row.name, ", ".join(map(format_delay, row.pattern.delays(row.parsed))))
            for row in _topologies(batch)
        ],
    }


def _topologies(batch: ReplayBatch) -> Any:
    return Topology.objects.filter(broker=batch.broker, state=State.APPLIED).order_by("name", "pk")


def words(known: Options) -> str:
    """The options in one line."""
    rate = "no rate limit" if known.rate is None else f"at most {known.rate:g} messages per second"
    parts = [str(known.mode.label), str(known.order.label), rate]
    if known.stages:
        parts.append(f"in stages {options.format_options(known)['stages']}")
    if known.canary:
        parts.append(f"canary of {known.canary}")
    if known.undo_seconds:
        parts.append(f"undo period {format_delay(options.SECOND * known.undo_seconds)}")
    if known.stop_after:
        parts.append(f"pauses when {known.stop_after} are dead-lettered again")
    if known.include_repeats:
        parts.append("possible repeats included")
    if known.unwraps:
        parts.append("without envelope")
    if known.keep_counters:
        parts.append("retry counters kept")
    return ", ".join(parts)
