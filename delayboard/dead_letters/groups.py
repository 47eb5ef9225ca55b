"""Groups of parked dead letters: a page of them, their trends, and grouping what a look showed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Q, QuerySet, Sum

from analytics.events import clean
from delayboard.dead_letters.browse import Letter
from delayboard.dead_letters.failure import Failure, failure_of
from delayboard.dead_letters.masks_cause import hidden_columns, seen_group
from delayboard.models import DeadLetter, LetterGroup, LetterState
from topology.masks import NOTHING, Masks
from topology.models import Broker
from topology.paging import row_number

PAGE = 50
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The year 2200 in microseconds.
LATEST = 7_258_118_400_000_000
LONGEST_TEXT = 200
SORTS = {"newest": "Newest first", "count": "Most parked first"}
# What a person can look for; a note is theirs, the rest is the letters'.
_SEARCHED = (
    "died_in",
    "reason",
    "exchange",
    "routing_key",
    "exception",
    "exception_message",
    "message_type",
    "note",
    "owner__username",
)


@dataclass(frozen=True)
class Asked:
    """What of the groups is asked for, as an address says it.

    `after` is where a page begins: the value that it is sorted by (a count, or microseconds since
    1970) and the id of the last group before; None for the first page. `with_gone` asks for those
    of which every letter was discarded or replayed too.
    """

    text: str = ""
    sort: str = "newest"
    with_gone: bool = False
    after: tuple[int, int] | None = None


@dataclass(frozen=True)
class Page:
    """`next_place` is what `after` says on the next page, "" on the last."""

    groups: Sequence[LetterGroup]
    next_place: str


def parse(values: Mapping[str, str]) -> Asked:
    """Read an address; what cannot be read is left out."""
    sort = values.get("sort", "")
    value, _, row = values.get("after", "").partition(",")
    place = (row_number(value), row_number(row))
    return Asked(
        text=clean(values.get("q", "").strip())[:LONGEST_TEXT],
        sort=sort if sort in SORTS else "newest",
        with_gone=values.get("gone", "") == "1",
        after=None if None in place else (place[0] or 0, place[1] or 0),
    )


def page(broker: Broker, asked: Asked, rules: Masks = NOTHING) -> Page:
    """The groups of a broker that fit, at most PAGE of them, as `rules` let them be seen."""
    rows = LetterGroup.objects.filter(broker=broker).select_related("owner")
    hidden = hidden_columns(rules)
    searched = [name for name in _SEARCHED if name not in hidden]
    open_ones = Q(parked__gt=0) | Q(replaying__gt=0) | Q(handed__gt=0)
    rows = _fitting(rows if asked.with_gone else rows.filter(open_ones), asked.text, searched)
    found = list(_after(rows, asked)[: PAGE + 1])
    last = found[PAGE - 1] if len(found) > PAGE else None
    seen = [seen_group(group, rules) for group in found[:PAGE]]
    return Page(seen, f"{_sorted_by(last, asked.sort)},{last.pk}" if last else "")


def _fitting(
    rows: QuerySet[LetterGroup], text: str, searched: Sequence[str]
) -> QuerySet[LetterGroup]:
    """Those that hold every word of the text somewhere."""
    for word in text.split():
        anywhere = Q()
        for name in searched:
            anywhere |= Q(**{f"{name}__icontains": word})
        rows = rows.filter(anywhere)
    return rows


def _after(rows: QuerySet[LetterGroup], asked: Asked) -> QuerySet[LetterGroup]:
    if asked.sort == "count":
        rows = rows.order_by("-parked", "-pk")
        if asked.after is not None:
            parked, pk = asked.after
            rows = rows.filter(Q(parked__lt=parked) | Q(parked=parked, pk__lt=pk))
        return rows
    rows = rows.order_by("-last_at", "-pk")
    if asked.after is not None:
        microseconds, pk = asked.after
        at = EPOCH + timedelta(microseconds=min(microseconds, LATEST))
        rows = rows.filter(Q(last_at__lt=at) | Q(last_at=at, pk__lt=pk))
    return rows


def _sorted_by(group: LetterGroup, sort: str) -> int:
    if sort == "count":
        return group.parked
    return max(0, (group.last_at - EPOCH) // timedelta(microseconds=1))


def grouped(letters: Iterable[Letter]) -> list[tuple[Failure, list[Letter]]]:
    """Letters that a look showed by what they died of, the largest groups first; pure."""
    found: dict[Failure, list[Letter]] = {}
    for letter in letters:
        found.setdefault(failure_of(letter.message, letter.history), []).append(letter)
    return sorted(found.items(), key=lambda pair: -len(pair[1]))


@dataclass(frozen=True)
class Seen:
    """A group of what a look showed: how many they are, and from the how many-th on.

    `group` is that of the journal, or one that is not kept (without a key) where none of it was
    ever parked; to be shown, never to be saved.
    """

    group: LetterGroup
    number: int
    first: int


def seen_in(broker: Broker, letters: Sequence[Letter], rules: Masks = NOTHING) -> list[Seen]:
    """The groups of what a look showed, as `rules` let them be seen, the largest first."""
    found = grouped(letters)
    fingerprints = [failure.fingerprint for failure, _ in found]
    rows = LetterGroup.objects.filter(broker=broker, fingerprint__in=fingerprints)
    kept = {group.fingerprint: group for group in rows}
    places = {letter.handle: place for place, letter in enumerate(letters, start=1)}
    return [
        Seen(
            seen_group(
                kept.get(failure.fingerprint) or LetterGroup(broker=broker, **asdict(failure)),
                rules,
            ),
            len(members),
            places[members[0].handle],
        )
        for failure, members in found
    ]


def by_state(broker: Broker) -> list[tuple[str, str, int]]:
    """The states that letters of the broker are in, in words, and how many; parked ones always."""
    sums = LetterGroup.objects.filter(broker=broker).aggregate(
        **{state: Sum(state, default=0) for state in LetterState.values}
    )
    return [
        (state.value, str(state.label), sums[state.value])
        for state in LetterState
        if sums[state.value] or state == LetterState.PARKED
    ]


def newest_of(group: LetterGroup) -> int:
    """The id of its newest letter, 0 without one: what is parked later is not meant."""
    states = (DeadLetter.objects.filter(group=group, state=state) for state in LetterState.values)
    keys = (rows.order_by("-pk").values_list("pk", flat=True).first() for rows in states)
    return max((key for key in keys if key is not None), default=0)
