"""A page of parked messages, with as much of each as the person may see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Sum
from django.db.models.functions import Substr

from analytics.search.find import Found, find
from analytics.search.query import Query
from delayboard.dead_letters.parked.redact_cause import hidden_columns, seen_parked_message
from delayboard.dead_letters.search import index
from delayboard.dead_letters.search.match import Search
from delayboard.models import Body, MessageGroup, ParkedMessage
from topology import access, redaction
from topology.access import User
from topology.models import Role
from topology.redaction import Redaction

PAGE = 30
COUNTED = 10_000
LINE = 160
# Longest body that a list shows where rules hide parts of bodies: it shows so many of them.
MASKED_BYTES = 16_384


@dataclass(frozen=True)
class Line:
    """`beginning` is the first of its body in one line, None where nothing of it may be shown."""

    row: ParkedMessage
    beginning: str | None


@dataclass(frozen=True)
class Listed:
    """`number` is None when nobody counted; `is_exact` is false when there are more.

    `hidden` are the columns that rules redact for this user.
    """

    lines: tuple[Line, ...]
    found: Found
    number: int | None
    is_exact: bool
    not_searchable: int
    newest: int
    has_content: bool
    hidden: frozenset[str]


def list_page(user: User, search: Search, edge: int | None) -> Listed:
    """What matches and comes after the message `edge`; `user` is who will see it."""
    found = find(search, edge, PAGE)
    number, is_exact = _count_matches(search, found, edge)
    rules = redaction.rules_for(user, search.broker)
    rows = [seen_parked_message(row, rules) for row in read_messages(found.ids)]
    reads = access.may(user, search.broker, Role.OPERATOR)
    lines = tuple(_make_lines(rows, rules if reads else None))
    waiting = index.not_searchable(search.broker) if search.query.reads_content else 0
    # So that what comes later is not among “all that match”.
    of_states = Search(search.broker, Query(chosen={"state": search.state}))
    return Listed(
        lines,
        found,
        number,
        is_exact,
        waiting,
        newest=max(of_states.next(None, 1), default=0),
        has_content=reads,
        hidden=hidden_columns(rules),
    )


def read_messages(ids: tuple[int, ...]) -> list[ParkedMessage]:
    """The rows in this order, without their properties, which may be large."""
    rows = ParkedMessage.objects.defer("properties").select_related("group").in_bulk(ids)
    return [rows[pk] for pk in ids if pk in rows]


def _count_matches(search: Search, found: Found, edge: int | None) -> tuple[int | None, bool]:
    """How many fit, and whether that is all; without reading more than COUNTED."""
    if search.is_empty:
        return 0, True
    if search.reads_messages:
        return found.number if edge is None else None, True
    if search.queues is None:
        groups = MessageGroup.objects.filter(broker=search.broker)
        if search.groups is not None:
            groups = groups.filter(pk__in=search.groups)
        sums = groups.aggregate(**{state: Sum(state, default=0) for state in search.states})
        return sum(sums.values()), True
    number = len(search.next(None, COUNTED + 1))
    return min(number, COUNTED), number <= COUNTED


def _make_lines(rows: list[ParkedMessage], hidden: Redaction | None) -> list[Line]:
    if hidden is None:
        return [Line(row, None) for row in rows]
    wanted = MASKED_BYTES + 1 if hidden.body_paths else 4 * LINE
    keys = {row.body_id for row in rows}
    bodies = Body.objects.filter(pk__in=keys).values_list("pk", Substr("data", 1, wanted))
    begun: Mapping[str, bytes] = {key: bytes(data or b"") for key, data in bodies}
    return [Line(row, _show_beginning(begun.get(row.body_id, b""), hidden)) for row in rows]


def _show_beginning(body: bytes, hidden: Redaction) -> str:
    """One line of what is text; a body of which a part is missing is hidden whole by any rule."""
    text = hidden.body(body, MASKED_BYTES)[: 4 * LINE].decode("utf-8", "replace")
    if "\ufffd" in text[: LINE // 2] or "\x00" in text:
        return "(binary body)"
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[:LINE]}…"
