"""A page of parked letters, with as much of each as the person may see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Sum
from django.db.models.functions import Substr

from delayboard.dead_letters.masks_cause import hidden_columns, seen_letter
from delayboard.dead_letters.search import texts
from delayboard.dead_letters.search.asked import Asked
from delayboard.dead_letters.search.find import Found, find
from delayboard.models import Body, DeadLetter, LetterGroup
from topology import access, masks
from topology.access import User
from topology.masks import Masks
from topology.models import Role

PAGE = 50
COUNTED = 10_000
LINE = 160
# Of so many bodies only shorter ones are shown where rules hide parts of them.
MASKED_BYTES = 16_384


@dataclass(frozen=True)
class Line:
    """`beginning` is the first of its body in one line, None where nothing of it may be shown."""

    row: DeadLetter
    beginning: str | None


@dataclass(frozen=True)
class Listed:
    """`number` is None where nobody counted; `is_exact` is false where there are more.

    `next_before` leads to what is older, found or not: then `was_cut` says that the search ended
    on its way. `hidden` are the columns that rules hide from the person.
    """

    lines: tuple[Line, ...]
    number: int | None
    is_exact: bool
    next_before: int | None
    was_cut: bool
    not_searchable: int
    newest: int
    has_content: bool
    hidden: frozenset[str]


def listed(user: User, asked: Asked, before: int | None) -> Listed:
    """What fits and is older than `before`, the newest first; `user` is who will see it."""
    found = find(asked, before, PAGE)
    number, is_exact = _number(asked, found, before)
    last = found.ids[-1] if found.ids else None
    rules = masks.rules_for(user, asked.broker)
    rows = [seen_letter(row, rules) for row in rows_of(found.ids)]
    reads = access.may(user, asked.broker, Role.OPERATOR)
    lines = tuple(_lines(rows, rules if reads else None))
    waiting = texts.not_searchable(asked.broker) if asked.query.reads_content else 0
    return Listed(
        lines,
        number,
        is_exact,
        None if found.is_all else found.searched_to or last,
        found.searched_to is not None,
        waiting,
        newest=_newest(asked),
        has_content=reads,
        hidden=hidden_columns(rules),
    )


def rows_of(ids: tuple[int, ...]) -> list[DeadLetter]:
    """The rows in this order, without their properties, which may be large."""
    rows = DeadLetter.objects.defer("properties").select_related("group").in_bulk(ids)
    return [rows[pk] for pk in ids if pk in rows]


def _newest(asked: Asked) -> int:
    """So that what comes later is not among “all that match”."""
    rows = DeadLetter.objects.filter(broker=asked.broker, state__in=asked.states)
    legs = [rows.filter(state=state) for state in asked.states]
    first = [leg.order_by("-pk").values_list("pk", flat=True).first() for leg in legs]
    return max((pk for pk in first if pk is not None), default=0)


def _number(asked: Asked, found: Found, before: int | None) -> tuple[int | None, bool]:
    """How many fit, and whether that is all; without reading more than COUNTED."""
    if asked.is_impossible:
        return 0, True
    if not asked.is_read_whole:
        return (found.number, True) if before is None else (None, True)
    if asked.queues is None:
        groups = LetterGroup.objects.filter(broker=asked.broker)
        if asked.groups is not None:
            groups = groups.filter(pk__in=asked.groups)
        sums = groups.aggregate(**{state: Sum(state, default=0) for state in asked.states})
        return sum(sums.values()), True
    total = 0
    for leg in asked.legs(None):
        total += leg[: COUNTED + 1 - total].count()
        if total > COUNTED:
            return COUNTED, False
    return total, True


def _lines(rows: list[DeadLetter], hidden: Masks | None) -> list[Line]:
    if hidden is None:
        return [Line(row, None) for row in rows]
    wanted = MASKED_BYTES + 1 if hidden.body_paths else 4 * LINE
    keys = {row.body_id for row in rows}
    bodies = Body.objects.filter(pk__in=keys).values_list("pk", Substr("data", 1, wanted))
    begun: Mapping[str, bytes] = {key: bytes(data or b"") for key, data in bodies}
    return [Line(row, _beginning(begun.get(row.body_id, b""), hidden)) for row in rows]


def _beginning(body: bytes, hidden: Masks) -> str:
    """One line of what is text; a body of which a part is missing is hidden whole by any rule."""
    text = hidden.body(body, MASKED_BYTES)[: 4 * LINE].decode("utf-8", "replace")
    if "\ufffd" in text[: LINE // 2] or "\x00" in text:
        return "(not a text)"
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[:LINE]}…"
