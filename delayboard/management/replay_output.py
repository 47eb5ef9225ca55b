"""What the command says of a replay: sentences for people, JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.db.models import Count

from delayboard.dead_letters.replay.present import summary as told
from delayboard.models import ReplayBatch, ReplayItem, ReplayRoute
from delayboard.models.replay import COUNTED, BatchState, ItemState, Source

REASONS = 5
NARROW = 200


def plain(text: str) -> str:
    """On one line, with nothing that a terminal would obey."""
    shown = "".join(sign if sign.isprintable() else "�" for sign in text)
    return shown if len(shown) <= NARROW else f"{shown[: NARROW - 1]}…"


def line(kind: str, **values: Any) -> str:
    return json.dumps({"kind": kind, **values}, ensure_ascii=False, separators=(",", ":"))


def many(number: int, one: str = "message") -> str:
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}s"


def dry_run(batch: ReplayBatch) -> Iterator[str]:
    """The summary, then each target with its verdict."""
    found = told.dry_run(batch)
    yield f"Replay {batch.pk}: {many(found.number)}, of {plain(batch.said)}."
    yield from repeats(batch)
    for ending in found.endings:
        yield f"  {'' if ending.is_good else '! '}{ending.number:,} {ending.words}"
    for route in found.routes:
        yield f"  {route.items_number:,}{target(route)}: {plain(route.verdict)}"
    if found.other_routes:
        yield f"  … and {many(found.other_routes, 'more target')}"


def repeats(batch: ReplayBatch) -> Iterator[str]:
    """What happens to the possible repeats; nothing where there is none."""
    if batch.excluded:
        yield (
            f"  {many(batch.excluded, 'possible repeat')} excluded: still parked. Include them "
            "with --include-repeats."
        )
    elif batch.repeats:
        yield (
            f"  {many(batch.repeats, 'possible repeat')} included, with the replay ids of the "
            "messages that they may repeat."
        )


def target(route: ReplayRoute) -> str:
    """Where it leads; "" where each message has a target of its own, or none."""
    if not route.exchange and not route.routing_key:
        return ""
    exchange = f"“{plain(route.exchange)}”" if route.exchange else "the default exchange"
    return f" to {exchange} with the key “{plain(route.routing_key)}”"


def each(batch: ReplayBatch) -> Iterator[str]:
    for item in _items(batch):
        name = plain(item.message_id) or f"parked message {item.parked_message_id}"
        if item.state == ItemState.EXCLUDED:
            yield f"  {item.position}. {name}: excluded, a possible repeat{_twin(item)}"
            continue
        where = (
            f"{target(item.route)}: {plain(item.route.verdict)}"
            if item.route
            else f": {item.error}"
        )
        mark = "" if item.route and item.route.is_good else "! "
        again = f" (possible repeat{_twin(item)})" if item.is_repeat else ""
        yield f"  {mark}{item.position}. {name}{where}{again}"


def _twin(item: ReplayItem) -> str:
    """The parked message that an item may repeat, as the end of a phrase."""
    twin = item.parked_message.repeat_of_id if item.parked_message else None
    return f" of message {twin}" if twin else ""


def dry_run_lines(batch: ReplayBatch, *, with_messages: bool) -> Iterator[str]:
    for route in batch.routes.filter(items_number__gt=0):
        yield line("route", messages=route.items_number, **_route(route))
    if with_messages:
        for item in _items(batch):
            named = {"parked_message": item.parked_message_id, "message_id": item.message_id}
            verdict = _route(item.route) if item.route else {}
            if item.is_repeat:
                verdict |= {
                    "repeat_of": item.parked_message.repeat_of_id if item.parked_message else None,
                    "is_excluded": item.state == ItemState.EXCLUDED,
                }
            yield line("message", position=item.position, **named, **verdict)
    some, _ = good(batch)
    yield line(
        "dry-run",
        replay=batch.pk,
        state=batch.state,
        selected=batch.selected,
        repeats=batch.repeats,
        excluded=batch.excluded,
        good=some,
    )


def good(batch: ReplayBatch) -> tuple[int, int]:
    """How many have a good verdict, of how many."""
    found = told.dry_run(batch)
    return found.number - found.bad, found.number


def progress(batch: ReplayBatch) -> str:
    """One line; with what hinders it, where something does."""
    told = [f"{batch.done:,} of {batch.to_send:,} done"]
    told += [f"{number:,} {name}" for name, number in _counts(batch) if name != "done" and number]
    hindered = batch.work.error if batch.work and not batch.work.is_ended else ""
    why = f" ({plain(hindered)})" if hindered else ""
    return f"Replay {batch.pk} is {_state(batch)}: {', '.join(told)}{why}"


def outcome(batch: ReplayBatch) -> Iterator[str]:
    """The counts, then why those that are not done are not, the most frequent reason first."""
    why = f": {plain(batch.state_why)}" if batch.state_why else "."
    yield f"Replay {batch.pk} is {batch.get_state_display()}{why}"
    told = ", ".join(f"{number:,} {name}" for name, number in _counts(batch))
    yield f"  {batch.selected:,} selected = {told}"
    if batch.doubled and batch.source == Source.QUEUE:
        yield f"  At most {batch.doubled:,} may be duplicated: sent again, with another replay id."
    elif batch.doubled:
        yield f"  {batch.doubled:,} of them may be duplicated: the same replay id, sent twice."
    if batch.died:
        yield f"  {batch.died:,} have died again."
    if batch.excluded:
        yield f"  {many(batch.excluded, 'possible repeat')} excluded: still parked."
    failed = batch.items.exclude(state=ItemState.DONE).exclude(error="").order_by()
    reasons = failed.values("error").annotate(number=Count("pk")).order_by("-number", "error")
    for reason in reasons[:REASONS]:
        yield f"  {reason['number']:,}: {plain(reason['error'])}"


def outcome_line(batch: ReplayBatch) -> str:
    return line(
        "replay",
        replay=batch.pk,
        state=batch.state,
        why=batch.state_why,
        selected=batch.selected,
        **batch.counts(),
        may_be_duplicated=batch.doubled,
        delivered=batch.delivered,
        died_again=batch.died,
    )


def _state(batch: ReplayBatch) -> str:
    until = {BatchState.WAITING: batch.publish_at, BatchState.WATCHING: batch.canary_until}
    moment = until.get(BatchState(batch.state))
    return batch.get_state_display() + (f" until {moment:%H:%M:%S} UTC" if moment else "")


def _counts(batch: ReplayBatch) -> Iterator[tuple[str, int]]:
    counts = batch.counts()
    for state in (*COUNTED, "pending"):
        yield str(state), counts[str(state)]


def _items(batch: ReplayBatch) -> Iterator[ReplayItem]:
    if batch.source == Source.QUEUE:
        return iter(())
    rows = batch.items.select_related("route", "parked_message").defer("parked_message__properties")
    return rows.order_by("position").iterator(1000)


def _route(route: ReplayRoute) -> dict[str, Any]:
    return {
        "exchange": route.exchange,
        "routing_key": route.routing_key,
        "ending": route.ending,
        "is_good": route.is_good,
        "verdict": route.verdict,
        "after_ms": route.after_ms,
    }
