"""The output of the replay command: counts for people, JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from django.db.models import Count

from delayboard.dead_letters.replay import summary
from delayboard.models import ReplayBatch, ReplayItem, ReplayRoute
from delayboard.models.replay import BatchState, ItemState
from topology.content.text import count_of, count_text, make_printable

REASONS = 5


def format_line(kind: str, **values: Any) -> str:
    return _format({"kind": kind, **values})


def _format(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def describe_dry_run(batch: ReplayBatch) -> Iterator[str]:
    """The summary, then each target with its verdict."""
    found = summary.summarize_dry_run(batch)
    number = count_of(found.number, "message")
    yield f"Replay {batch.pk}: {number}, of {make_printable(batch.description)}."
    yield from describe_repeats(batch)
    for ending in found.endings:
        yield f"  {'' if ending.is_good else '! '}{count_text(ending.number)} {ending.words}"
    for route in found.routes:
        number = count_text(route.items_number)
        yield f"  {number}{describe_target(route)}: {make_printable(route.verdict)}"
    if found.other_routes:
        yield f"  … and {count_of(found.other_routes, 'more target')}"


def describe_repeats(batch: ReplayBatch) -> Iterator[str]:
    """What happens to the possible repeats; nothing where there is none."""
    if batch.excluded:
        yield (
            f"  {count_of(batch.excluded, 'possible repeat')} excluded: still parked. "
            "Include them on the page of the replay."
        )
    elif batch.repeats:
        yield (
            f"  {count_of(batch.repeats, 'possible repeat')} included, with the replay ids "
            "of the messages that they may repeat."
        )


def describe_target(route: ReplayRoute) -> str:
    """Where it leads; "" where each message has a target of its own, or none."""
    if not route.exchange and not route.routing_key:
        return ""
    exchange = f"“{make_printable(route.exchange)}”" if route.exchange else "the default exchange"
    return f" to {exchange} with the key “{make_printable(route.routing_key)}”"


def list_messages(batch: ReplayBatch) -> Iterator[str]:
    for item in _read_items(batch):
        name = make_printable(item.message_id) or f"parked message {item.parked_message_id}"
        if item.state == ItemState.EXCLUDED:
            yield f"  {item.position}. {name}: excluded, a possible repeat{_describe_twin(item)}"
            continue
        where = (
            f"{describe_target(item.route)}: {make_printable(item.route.verdict)}"
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


def format_dry_run(batch: ReplayBatch, *, with_messages: bool) -> Iterator[str]:
    for route in batch.routes.filter(items_number__gt=0):
        yield format_line("route", messages=route.items_number, **summary.make_route_record(route))
    if with_messages:
        for item in _read_items(batch):
            named = {"parked_message": item.parked_message_id, "message_id": item.message_id}
            verdict = summary.make_route_record(item.route) if item.route else {}
            if item.is_repeat:
                verdict |= {
                    "repeat_of": item.parked_message.repeat_of_id if item.parked_message else None,
                    "is_excluded": item.state == ItemState.EXCLUDED,
                }
            yield format_line("message", position=item.position, **named, **verdict)
    yield _format(summary.make_dry_run_record(batch))


def count_good(batch: ReplayBatch) -> tuple[int, int]:
    """How many have a good verdict, of how many."""
    found = summary.summarize_dry_run(batch)
    return found.number - found.bad, found.number


def describe_progress(batch: ReplayBatch) -> str:
    """One line; with what hinders it, where something does."""
    counts = [f"{count_text(batch.done)} of {count_text(batch.to_send)} done"]
    counts += [
        f"{count_text(number)} {name}"
        for name, number in batch.counts().items()
        if name != "done" and number
    ]
    hindered = batch.work.error if batch.work and not batch.work.is_ended else ""
    why = f" ({make_printable(hindered)})" if hindered else ""
    return f"Replay {batch.pk} is {_describe_state(batch)}: {', '.join(counts)}{why}"


def describe_outcome(batch: ReplayBatch) -> Iterator[str]:
    """The counts, then why those that are not done are not, the most frequent reason first."""
    why = f": {make_printable(batch.state_why)}" if batch.state_why else "."
    yield f"Replay {batch.pk} is {batch.get_state_display()}{why}"
    sentence = ", ".join(f"{count_text(number)} {name}" for name, number in batch.counts().items())
    yield f"  {count_text(batch.selected)} selected = {sentence}"
    if batch.unknown:
        yield f"  {count_text(batch.unknown)} may have arrived. RabbitMQ did not confirm them."
    if batch.doubled:
        doubled = count_text(batch.doubled)
        yield f"  {doubled} of them may be duplicated. A copy has the same replay id."
    if batch.died:
        yield f"  {count_text(batch.died)} were dead-lettered again."
    if batch.excluded:
        yield f"  {count_of(batch.excluded, 'possible repeat')} excluded: still parked."
    failed = batch.items.exclude(state=ItemState.DONE).exclude(error="").order_by()
    reasons = failed.values("error").annotate(number=Count("pk")).order_by("-number", "error")
    for reason in reasons[:REASONS]:
        yield f"  {count_text(reason['number'])}: {make_printable(reason['error'])}"


def format_outcome(batch: ReplayBatch) -> str:
    return _format(summary.make_replay_record(batch))


def _describe_state(batch: ReplayBatch) -> str:
    until = {BatchState.WAITING: batch.publish_at, BatchState.WATCHING: batch.canary_until}
    moment = until.get(BatchState(batch.state))
    return batch.get_state_display() + (f" until {moment:%H:%M:%S} UTC" if moment else "")


def _read_items(batch: ReplayBatch) -> Iterator[ReplayItem]:
    rows = batch.items.select_related("route", "parked_message").defer("parked_message__properties")
    return rows.order_by("position").iterator(1000)
