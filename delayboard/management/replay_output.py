"""The output of the replay command: counts for people, JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from delayboard.dead_letters.replay import summary
from delayboard.models import ReplayBatch, ReplayItem
from delayboard.models.replay import COUNTED, BatchState, ItemState
from topology.content.text import count_of, count_text, make_printable

# They add up to `selected`.
COUNTS = (*map(str, COUNTED), "pending")


def format_line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def describe_dry_run(dry: Mapping[str, Any]) -> Iterator[str]:
    """The summary, then each target with its verdict; of the document of the API."""
    number = count_of(count_checked(dry), "message")
    yield f"Replay {dry['replay']}: {number}, of {make_printable(dry['description'])}."
    if dry["excluded"]:
        yield (
            f"  {count_of(dry['excluded'], 'possible repeat')} excluded: still parked. "
            "Include them on the page of the replay."
        )
    elif dry["repeats"]:
        yield (
            f"  {count_of(dry['repeats'], 'possible repeat')} included, with the replay ids "
            "of the messages that they may repeat."
        )
    for one in dry["endings"]:
        yield f"  {'' if one['is_good'] else '! '}{count_text(one['messages'])} {one['ending']}"
    for route in dry["routes"][: summary.ROUTES]:
        number = count_text(route["messages"])
        yield f"  {number}{describe_target(route)}: {make_printable(route['verdict'])}"
    if others := dry["routes"][summary.ROUTES :]:
        yield f"  … and {count_of(len(others), 'more target')}"


def count_checked(dry: Mapping[str, Any]) -> int:
    """How many messages have a verdict."""
    return sum(one["messages"] for one in dry["endings"])


def describe_target(route: Mapping[str, Any]) -> str:
    """Where it leads; "" where each message has a target of its own, or none."""
    exchange, key = route["exchange"], route["routing_key"]
    if not exchange and not key:
        return ""
    where = f"“{make_printable(exchange)}”" if exchange else "the default exchange"
    return f" to {where} with the key “{make_printable(key)}”"


def list_messages(batch: ReplayBatch) -> Iterator[str]:
    for item in _read_items(batch):
        name = make_printable(item.message_id) or f"parked message {item.parked_message_id}"
        if item.state == ItemState.EXCLUDED:
            yield f"  {item.position}. {name}: excluded, a possible repeat{_describe_twin(item)}"
            continue
        where = (
            f"{describe_target(summary.make_route_record(item.route))}: "
            f"{make_printable(item.route.verdict)}"
            if item.route
            else f": {item.error}"
        )
        mark = "" if item.route and item.route.is_good else "! "
        again = f" (possible repeat{_describe_twin(item)})" if item.is_repeat else ""
        yield f"  {mark}{item.position}. {name}{where}{again}"


def _describe_twin(item: ReplayItem) -> str:
    """The parked message that an item may repeat, as the end of a phrase."""
    twin = item.parked_message.repeat_of_id if item.parked_message else None
    return f" of message {twin}" if twin else ""


def format_messages(batch: ReplayBatch) -> Iterator[str]:
    for item in _read_items(batch):
        named = {"parked_message": item.parked_message_id, "message_id": item.message_id}
        verdict = summary.make_route_record(item.route) if item.route else {}
        if item.is_repeat:
            verdict |= {
                "repeat_of": item.parked_message.repeat_of_id if item.parked_message else None,
                "is_excluded": item.state == ItemState.EXCLUDED,
            }
        line = {"kind": "message", "position": item.position, **named, **verdict}
        yield format_line(line)


def format_dry_run(dry: Mapping[str, Any], messages: Iterable[str] = ()) -> Iterator[str]:
    """A line for each target, those of `messages`, and the summary."""
    yield from map(format_line, dry["routes"])
    yield from messages
    yield format_line({name: dry[name] for name in dry if name not in ("routes", "warnings")})


def describe_progress(replay: Mapping[str, Any]) -> str:
    """One line; with what hinders it, where something does."""
    counts = [f"{count_text(replay['done'])} of {count_text(count_to_send(replay))} done"]
    counts += [
        f"{count_text(replay[name])} {name}" for name in COUNTS if name != "done" and replay[name]
    ]
    why = f" ({make_printable(replay['hindered_by'])})" if replay["hindered_by"] else ""
    until_at = replay["until_at"]
    until = f" until {datetime.fromisoformat(until_at):%H:%M:%S} UTC" if until_at else ""
    state = BatchState(replay["state"]).label
    return f"Replay {replay['replay']} is {state}{until}: {', '.join(counts)}{why}"


def describe_outcome(replay: Mapping[str, Any]) -> Iterator[str]:
    """The counts, then why those that are not done are not, the most frequent reason first."""
    why = f": {make_printable(replay['why'])}" if replay["why"] else "."
    yield f"Replay {replay['replay']} is {BatchState(replay['state']).label}{why}"
    sentence = ", ".join(f"{count_text(replay[name])} {name}" for name in COUNTS)
    yield f"  {count_text(replay['selected'])} selected = {sentence}"
    if replay["unknown"]:
        yield f"  {count_text(replay['unknown'])} may have arrived. RabbitMQ did not confirm them."
    if replay["may_be_duplicated"]:
        doubled = count_text(replay["may_be_duplicated"])
        yield f"  {doubled} of them may be duplicated. A copy has the same replay id."
    if replay["died_again"]:
        yield f"  {count_text(replay['died_again'])} were dead-lettered again."
    if replay["excluded"]:
        yield f"  {count_of(replay['excluded'], 'possible repeat')} excluded: still parked."
    for one in replay["errors"] or ():
        yield f"  {count_text(one['messages'])}: {make_printable(one['error'])}"


def count_to_send(replay: Mapping[str, Any]) -> int:
    return int(replay["selected"]) - int(replay["excluded"])


def _read_items(batch: ReplayBatch) -> Iterator[ReplayItem]:
    rows = batch.items.select_related("route", "parked_message").defer("parked_message__properties")
    return rows.order_by("position").iterator(1000)
