"""Groups of parked dead letters: a page of them, when their messages died, groups in a peek."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from django.db.models import F, Max, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Greatest

from analytics.charts.svg import area
from analytics.events import clean
from delayboard.dead_letters.parked.failure import Failure, failure_of
from delayboard.dead_letters.parked.redact_cause import hidden_columns, seen_group
from delayboard.dead_letters.queues.peek import PeekedMessage
from delayboard.models import GroupHour, MessageGroup, ParkedMessage, ParkedState
from topology.content.text import count_text
from topology.database.paging import Page, read_slice
from topology.models import Broker
from topology.models.client_convention import read_conventions
from topology.redaction import NOTHING, Redaction

PAGE = 50
LONGEST_TEXT = 200
SORTS = {"newest": "Newest first", "count": "Most parked first"}
# Fields of a group that a person can search; a note is the person's, the others are the messages'.
_SEARCHED = (
    "died_in",
    "parked_from",
    "reason",
    "exchange",
    "routing_key",
    "exception",
    "exception_message",
    "message_type",
    "note",
    "owner__username",
)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class GroupFilter:
    """The query parameters of the list of groups.

    `after` is how many groups are on the pages before. `with_empty` includes groups of which every
    message was discarded or replayed.
    """

    text: str = ""
    sort: str = "newest"
    with_empty: bool = False
    after: str = ""


def parse(values: Mapping[str, str]) -> GroupFilter:
    """Read query parameters; invalid ones are ignored."""
    sort = values.get("sort", "")
    return GroupFilter(
        text=clean(values.get("q", "").strip())[:LONGEST_TEXT],
        sort=sort if sort in SORTS else "newest",
        with_empty=values.get("empty", "") == "1",
        after=values.get("after", ""),
    )


def page(
    brokers: Collection[Broker], filters: GroupFilter, rules: Mapping[int, Redaction]
) -> Page[MessageGroup]:
    """The groups of these brokers that fit, at most PAGE of them.

    `rules` are those of each broker, by its id: they say what is seen and searched of its groups.
    """
    of_brokers = MessageGroup.objects.filter(broker__in=brokers)
    rows = of_brokers.filter(merged_into=None).select_related("owner", "broker")
    merged = of_brokers.filter(merged_into__isnull=False)
    rows = _add_merged(rows) if (has_merged := merged.exists()) else rows
    open_ones = Q(parked__gt=0) | Q(replaying__gt=0) | Q(delayed__gt=0)
    if has_merged:
        open_ones |= Q(pk__in=merged.filter(open_ones).values("merged_into"))
    rows = _filter_fitting(
        rows if filters.with_empty else rows.filter(open_ones),
        filters.text,
        {broker.pk: hidden_columns(rules[broker.pk]) for broker in brokers},
    )
    if filters.sort == "count":
        column = "parked_in_all" if has_merged else "parked"
    else:
        column = "last_in_all" if has_merged else "last_at"
    rows = rows.order_by(f"-{column}", "-pk")
    found = read_slice(rows, filters.after, PAGE)
    seen = [seen_group(one, rules[one.broker_id]) for one in with_merged_counts(found.rows)]
    return replace(found, rows=seen)


def _add_merged(rows: QuerySet[MessageGroup]) -> QuerySet[MessageGroup]:
    """With what the list is sorted by, of a group and of those merged into it."""
    members = (
        MessageGroup.objects.filter(merged_into=OuterRef("pk")).order_by().values("merged_into")
    )
    parked = members.annotate(number=Sum("parked")).values("number")
    last_at = members.annotate(at=Max("last_at")).values("at")
    return rows.annotate(
        parked_in_all=F("parked") + Coalesce(Subquery(parked), 0),
        last_in_all=Greatest(F("last_at"), Coalesce(Subquery(last_at), F("last_at"))),
    )


def with_merged_counts(groups: Sequence[MessageGroup]) -> list[MessageGroup]:
    """The groups with the counts and times of those merged into them; to be shown, not saved."""
    found = {group.pk: copy(group) for group in groups}
    for one in MessageGroup.objects.filter(merged_into__in=found):
        group = found[one.merged_into_id or 0]
        for name in (*ParkedState.values, "total"):
            setattr(group, name, getattr(group, name) + getattr(one, name))
        group.first_at = min(group.first_at, one.first_at)
        group.last_at = max(group.last_at, one.last_at)
    return list(found.values())


def _filter_fitting(
    rows: QuerySet[MessageGroup], text: str, hidden: Mapping[int, Collection[str]]
) -> QuerySet[MessageGroup]:
    """The groups that hold every word of the text in a column that is not hidden for their
    broker.
    """
    hiding: dict[frozenset[str], list[int]] = defaultdict(list)
    for broker, columns in hidden.items():
        hiding[frozenset(columns)].append(broker)
    for word in text.split():
        anywhere = Q()
        for columns, brokers in hiding.items():
            named = Q()
            for name in _SEARCHED:
                if name not in columns:
                    named |= Q(**{f"{name}__icontains": word})
            anywhere |= Q(broker__in=brokers) & named
        rows = rows.filter(anywhere)
    return rows


@dataclass(frozen=True)
class Seen:
    """A group of what a look showed: how many they are, and from the how many-th on.

    `group` is that of the parked messages, or one that is not kept (without a key) where none of it
    was ever parked; to be shown, never to be saved.
    """

    group: MessageGroup
    number: int
    first: int


def seen_in(
    broker: Broker, queue: str, peeked: Sequence[PeekedMessage], rules: Redaction = NOTHING
) -> list[Seen]:
    """The groups of what a peek of `queue` showed, as `rules` let them be seen, the largest
    first."""
    own = read_conventions(broker)
    places: dict[Failure, list[int]] = {}
    for place, one in enumerate(peeked, start=1):
        places.setdefault(failure_of(one.message, one.history, queue, own), []).append(place)
    fingerprints = [failure.fingerprint for failure in places]
    rows = MessageGroup.objects.filter(broker=broker, fingerprint__in=fingerprints)
    causes = {group.fingerprint: group for group in rows.select_related("merged_into")}
    shown = {group.merged_into or group for group in causes.values()}
    counted = {group.pk: group for group in with_merged_counts(list(shown))}
    seen: dict[int | str, Seen] = {}
    for failure, members in places.items():
        cause = causes.get(failure.fingerprint)
        group = MessageGroup(broker=broker, **asdict(failure))
        if cause is not None:
            group = counted[cause.merged_into_id or cause.pk]
        known = seen.get(group.pk or failure.fingerprint)
        number, first = len(members), members[0]
        if known is not None:
            number, first = number + known.number, min(first, known.first)
        seen[group.pk or failure.fingerprint] = Seen(seen_group(group, rules), number, first)
    return sorted(seen.values(), key=lambda one: -one.number)


def count_parked(brokers: Collection[Broker]) -> dict[int, int]:
    """Broker -> how many messages of it are parked; all of them are in groups."""
    rows = MessageGroup.objects.filter(broker__in=brokers).order_by()
    return dict(rows.values_list("broker").annotate(Sum("parked")))


def by_state(broker: Broker) -> list[tuple[str, str, int]]:
    """The states that messages of the broker are in, in words, and how many; parked ones always."""
    sums = MessageGroup.objects.filter(broker=broker).aggregate(
        **{state: Sum(state, default=0) for state in ParkedState.values}
    )
    return _in_words(sums)


def count_states(group: MessageGroup) -> list[tuple[str, str, int]]:
    """The counts of one group, as `by_state`."""
    return _in_words({state: getattr(group, state) for state in ParkedState.values})


def _in_words(numbers: Mapping[str, int]) -> list[tuple[str, str, int]]:
    return [
        (state.value, str(state.label), numbers[state.value])
        for state in ParkedState
        if numbers[state.value] or state == ParkedState.PARKED
    ]


def newest_parked(group: MessageGroup) -> ParkedMessage | None:
    """The newest message of the group that can be replayed."""
    parked = ParkedMessage.objects.filter(state=ParkedState.PARKED).select_related("broker")
    rows = (parked.filter(group=pk).order_by("-pk").first() for pk in group.member_ids)
    return max((row for row in rows if row is not None), key=lambda row: row.pk, default=None)


def newest_of(group: MessageGroup) -> int:
    """The id of its newest message, 0 without one: what is parked later is not meant."""
    states = (
        ParkedMessage.objects.filter(group=pk, state=state)
        for pk in group.member_ids
        for state in ParkedState.values
    )
    keys = (rows.order_by("-pk").values_list("pk", flat=True).first() for rows in states)
    return max((key for key in keys if key is not None), default=0)


@dataclass(frozen=True)
class Span:
    """`steps` steps of this length, the last of which is not over."""

    words: str
    step: timedelta
    steps: int
    step_words: str


# Bars that a zoomed drawing has at least.
MOST_ZOOM = 12
# Time spans that a list draws, and that a group's own page draws.
SPANS = {
    "day": Span("24 hours", HOUR, 24, "an hour"),
    "week": Span("7 days", 6 * HOUR, 28, "6 hours"),
}
BARS = {
    "hour": Span("48 hours", HOUR, 48, "an hour"),
    "day": Span("60 days", DAY, 60, "a day"),
}


@dataclass(frozen=True)
class Bar:
    """One step as it is drawn: ten units wide, a hundred high at the most."""

    place: int
    from_at: datetime
    number: int
    highest: int

    @property
    def x(self) -> int:
        return self.place * 10

    @property
    def height(self) -> int:
        """One that is not empty is to be seen."""
        return max(2, round(100 * self.number / self.highest)) if self.number else 0

    @property
    def y(self) -> int:
        return 100 - self.height


@dataclass(frozen=True)
class Trend:
    """Counts of deaths from `from_at` (UTC) on, the oldest first."""

    span: Span
    from_at: datetime
    counts: Sequence[int]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def highest(self) -> int:
        return max(self.counts, default=0)

    @property
    def width(self) -> int:
        """The width of the bars, in the units of Bar."""
        return 10 * len(self.counts)

    @property
    def area(self) -> str:
        """The corners of a small drawing, as analytics.charts.svg has it."""
        return area(self.counts, most=self.highest, steps=len(self.counts))

    @property
    def described(self) -> str:
        if not self.total:
            return f"No message was dead-lettered in the last {self.span.words}."
        return (
            f"{count_text(self.total)} dead-lettered in the last {self.span.words}, at most "
            f"{count_text(self.highest)} in {self.span.step_words}."
        )

    @property
    def bars(self) -> list[Bar]:
        return [
            Bar(place, self.from_at + place * self.span.step, number, self.highest)
            for place, number in enumerate(self.counts)
        ]

    @property
    def fitted(self) -> Bar:
        """The bar at which a drawing begins: what is empty before the first death is left out."""
        first = next((place for place, number in enumerate(self.counts) if number), 0)
        return self.bars[max(0, min(first - 1, len(self.counts) - MOST_ZOOM))]

    @property
    def fitted_width(self) -> int:
        return self.width - self.fitted.x


def choose_bars(group: MessageGroup, now: datetime) -> str:
    """The shortest of BARS in which the group has a death."""
    hours = BARS["hour"]
    return "hour" if group.last_at > find_trend_start(hours, now) else "day"


def find_trend_start(span: Span, now: datetime) -> datetime:
    """When the first step begins; steps begin at whole hours, days, or quarters of days."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    this = today + (now - today) // span.step * span.step
    return this - (span.steps - 1) * span.step


def count_trend(rows: Iterable[tuple[datetime, int]], span: Span, now: datetime) -> Trend:
    """Pure: the trend of these hours and their counts; hours outside of the span are ignored."""
    from_at = find_trend_start(span, now)
    counts = [0] * span.steps
    for hour, number in rows:
        place = (hour - from_at) // span.step
        if 0 <= place < span.steps:
            counts[place] += number
    return Trend(span, from_at, counts)


def trends(groups: Collection[MessageGroup], span: Span, now: datetime) -> dict[int, Trend]:
    """The trend of each group with those merged into it, by its id."""
    from_at = find_trend_start(span, now)
    hours: dict[int, list[tuple[datetime, int]]] = {group.pk: [] for group in groups}
    merged = MessageGroup.objects.filter(merged_into__in=hours).values_list("pk", "merged_into")
    shown = {**dict(merged), **{pk: pk for pk in hours}}
    rows = GroupHour.objects.filter(group__in=shown, hour__gte=from_at)
    for pk, hour, died in rows.values_list("group", "hour", "died"):
        hours[shown[pk] or pk].append((hour, died))
    return {pk: count_trend(found, span, now) for pk, found in hours.items()}


def has_earlier(group: MessageGroup, trend: Trend) -> bool:
    """Whether some of the group died before its trend begins."""
    return GroupHour.objects.filter(group__in=group.member_ids, hour__lt=trend.from_at).exists()
