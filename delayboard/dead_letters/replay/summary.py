"""What the pages of replays show: a batch in words and bars, and its items page by page."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from delayboard.dead_letters.parked.redact_cause import hides_history, seen_group
from delayboard.dead_letters.replay.batch_state import (
    AT_ONCE,
    count_bad_verdicts,
    is_resting,
    name_ending,
    name_request,
)
from delayboard.dead_letters.replay.claims import FREE
from delayboard.dead_letters.replay.outcome import list_warnings
from delayboard.dead_letters.search import reveals
from delayboard.models import (
    BatchState,
    ItemState,
    MessageGroup,
    ReplayBatch,
    ReplayEdit,
    ReplayItem,
    ReplayOutcome,
    ReplayRoute,
)
from delayboard.models.background_task import REPLAYS, is_missing
from delayboard.models.replay import OPEN, REMAINING, TargetMode
from topology import redaction
from topology.access import User
from topology.content.export_format import format_moment
from topology.content.text import count_text
from topology.database import paging
from topology.database.paging import Page
from topology.deaths import History, read_history
from topology.delays import format_span
from topology.graph.live_values import make_version
from topology.redaction import HIDDEN, NOTHING, Redaction

# Most targets that are listed one by one; the others are counted.
ROUTES = 20
BAR = 1000
# Least width of a part of a bar, however small it is, and of the gap between two.
LEAST, GAP = 10, 4

_ARRIVES = "would arrive"
_DELAYED = "would be sent to a delay and arrive after the delay"
_OUTCOME_KINDS = {
    ReplayOutcome.DELIVERED: "ok",
    ReplayOutcome.DIED: "error",
    ReplayOutcome.DELAYED: "note",
    ReplayOutcome.UNOBSERVED: "off",
}
PACE_OVER = timedelta(seconds=10)
# Longest remaining time in seconds: after a year the display shows that there is no end.
LONGEST_REMAINING = 31_536_000
MOST_FAILURES = 3
# Errors of an outcome, the most frequent first.
MOST_ERRORS = 5
PAGE = 25
# Modes whose targets are found from the headers of the messages.
_FOUND = (TargetMode.DEFAULT, TargetMode.FIRST_QUEUE)
SHOWN = {
    **{str(state): state.label for state in ItemState},
    "bad": "a bad dry run",
    "repeats": "possible repeats",
    "doubled": "may be duplicated",
    "edited": "edited",
    **{f"was-{outcome}": outcome.label for outcome in ReplayOutcome},
}


@dataclass(frozen=True)
class Part:
    """One part of a bar of BAR units; `kind` is ok, note, warn, error or off."""

    kind: str
    words: str
    number: int
    x: int
    width: int


@dataclass(frozen=True)
class Line:
    """A batch in a list."""

    batch: ReplayBatch
    description: str
    bar: tuple[Part, ...]


@dataclass(frozen=True)
class Ending:
    """A predicted ending, and the number of messages with it; `kind` is that of a Part."""

    number: int
    words: str
    kind: str

    @property
    def is_good(self) -> bool:
        return self.kind != "error"


@dataclass(frozen=True)
class DryRun:
    """`bad` of `number` would not arrive well; `endings` are the worst first, then the most."""

    number: int
    bad: int
    endings: tuple[Ending, ...]
    routes: tuple[ReplayRoute, ...]
    other_routes: int

    @property
    def bar(self) -> tuple[Part, ...]:
        return make_bar((one.kind, one.words, one.number) for one in self.endings)


def make_bar(numbers: Iterable[tuple[str, str, int]]) -> tuple[Part, ...]:
    """Kinds, labels and counts as parts of one bar; zero counts are omitted."""
    some = [one for one in numbers if one[2] > 0]
    total = sum(number for _, _, number in some)
    widths = [max(LEAST, BAR * number // total) for _, _, number in some]
    if widths:
        # What rounding and the least width took is the widest one's.
        widths[widths.index(max(widths))] += BAR - sum(widths)
    places = accumulate(widths, initial=0)
    return tuple(
        Part(kind, words, number, x, width if x + width == BAR else width - GAP)
        for (kind, words, number), x, width in zip(some, places, widths, strict=False)
    )


def summarize_dry_run(batch: ReplayBatch) -> DryRun:
    """The routes of a batch, summed up by how they end."""
    bad = count_bad_verdicts(batch)
    delayed = Sum("items_number", filter=Q(after_ms__gt=0), default=0)
    good = batch.routes.filter(is_good=True).aggregate(
        number=Sum("items_number", default=0), delayed=delayed
    )
    found = [
        Ending(number, name_ending(batch, ending), "error")
        for ending, number in sorted(bad.items(), key=itemgetter(1), reverse=True)
    ]
    found.append(Ending(good["delayed"], _DELAYED, "note"))
    found.append(Ending(good["number"] - good["delayed"], _ARRIVES, "ok"))
    endings = tuple(one for one in found if one.number)
    # Those of an earlier target may be left without items.
    used = batch.routes.filter(items_number__gt=0)
    routes = tuple(used[:ROUTES])
    number = sum(bad.values())
    return DryRun(good["number"] + number, number, endings, routes, used.count() - len(routes))


def count_taken(batch: ReplayBatch) -> int:
    """How many messages of a draft are in another replay, or were replayed, discarded or deleted.

    Only of the messages that are claimed while the page waits.
    """
    if batch.selected > AT_ONCE:
        return 0
    pending = batch.items.filter(state=ItemState.PENDING)
    return pending.exclude(parked_message__state__in=FREE).count()


def make_progress_bar(batch: ReplayBatch) -> tuple[Part, ...]:
    """How its items ended, as the bar of a list."""
    return make_bar(
        (
            ("ok", "replayed", batch.done),
            ("error", "not replayed", batch.refused),
            ("warn", str(ItemState.UNKNOWN.label), batch.unknown),
            ("off", "cancelled", batch.cancelled),
            ("rest", "pending", batch.pending),
        )
    )


def make_outcome_bar(counts: Mapping[ReplayOutcome, int]) -> tuple[Part, ...]:
    return make_bar((_OUTCOME_KINDS[one], str(one.label), n) for one, n in counts.items())


def describe_selection(batch: ReplayBatch, rules: Redaction) -> str:
    """How many were chosen of what, in words, without what a rule hides from the person."""
    if not batch.selected or (batch.group is None and not batch.query):
        return describe_source(batch, rules)
    return f"{count_text(batch.selected)} of {describe_source(batch, rules)}"


def describe_source(batch: ReplayBatch, rules: Redaction) -> str:
    if batch.group is not None:
        return f"the group “{seen_group(batch.group, rules)}”"
    if batch.query:
        shown = HIDDEN if reveals(rules, batch.query) else batch.query
        return f"what matches “{shown}”"
    return batch.description


def make_lines(user: User, batches: Sequence[ReplayBatch]) -> list[Line]:
    """Needs the broker and the group of each."""
    rules = {one.broker_id: one.broker for one in batches}
    hidden = {pk: redaction.rules_for(user, broker) for pk, broker in rules.items()}
    return [
        Line(one, describe_selection(one, hidden[one.broker_id]), make_progress_bar(one))
        for one in batches
    ]


def make_page_version(batch: ReplayBatch) -> str:
    """Changes with what a replay's page shows of its progress."""
    outcomes = (batch.doubled, batch.delivered, batch.died)
    counts = tuple(batch.counts().values())
    own = batch.work
    progress = (own.done, own.total, own.error) if own else ()
    requests = (own.cancel_requested, own.pause_requested) if own else ()
    state = (str(batch.state), batch.state_why, is_missing(REPLAYS))
    return make_version(*state, counts, outcomes, progress, requests)


class Pace:
    """How fast a count grows, over the last PACE_OVER."""

    def __init__(self) -> None:
        self._seen: deque[tuple[datetime, int]] = deque()

    def of(self, count: int, at: datetime) -> float | None:
        """The growth of a queue in a second; None before there is a second count."""
        self._seen.append((at, count))
        while len(self._seen) > 2 and at - self._seen[1][0] >= PACE_OVER:
            self._seen.popleft()
        first_at, first = self._seen[0]
        seconds = (at - first_at).total_seconds()
        return max(0, count - first) / seconds if seconds > 0 else None


@lru_cache(maxsize=100)
def _pace_of(batch_id: int) -> Pace:
    return Pace()


def describe_pace(batch: ReplayBatch, at: datetime) -> tuple[str, ...]:
    """How many messages a second are processed, and how long the rest takes, as far as known."""
    is_running = batch.state == BatchState.RUNNING
    pace = _pace_of(batch.pk).of(batch.settled, at) if is_running else None
    if pace is None:
        return ()
    words = f"{pace:.{0 if pace >= 10 else 1}f} per second"
    if not pace or not batch.pending:
        return (words,)
    seconds = timedelta(seconds=math.ceil(min(batch.pending / pace, LONGEST_REMAINING)))
    return words, f"about {format_span(seconds)} left"


@dataclass(frozen=True)
class ItemFilter:
    """Which items: one of SHOWN or "", a route's id or None."""

    shown: str
    route: int | None


def hides_targets(batch: ReplayBatch, rules: Redaction) -> bool:
    """Whether the targets of its messages show what a rule redacts."""
    return batch.mode in _FOUND and hides_history(rules)


def read_page(batch: ReplayBatch, asked: ItemFilter, after: str) -> Page[ReplayItem]:
    """A page of items, in the order of their positions."""
    rows = _filter_items(batch, asked).select_related("route", "parked_message__repeat_of")
    rows = rows.defer("parked_message__properties", "parked_message__repeat_of__properties")
    edits = ReplayEdit.objects.filter(item=OuterRef("pk"))
    return paging.read_page(rows.annotate(is_edited=Exists(edits)), after, PAGE, "position")


def _filter_items(batch: ReplayBatch, asked: ItemFilter) -> QuerySet[ReplayItem]:
    rows = batch.items.all()
    if asked.route is not None:
        rows = rows.filter(route=asked.route)
    if asked.shown == "bad":
        return rows.filter(route__in=batch.routes.filter(is_good=False).order_by().values("pk"))
    if asked.shown == ItemState.PENDING:
        return rows.filter(state__in=OPEN)
    if asked.shown == "repeats":
        return rows.filter(is_repeat=True)
    if asked.shown == "doubled":
        return rows.filter(may_be_duplicated=True)
    if asked.shown == "edited":
        return rows.filter(edit__isnull=False)
    if asked.shown.startswith("was-"):
        return rows.filter(outcome=asked.shown.removeprefix("was-"))
    return rows.filter(state=asked.shown) if asked.shown else rows


def list_filters(batch: ReplayBatch, bad: int, asked: str) -> list[tuple[str, str, int | None]]:
    """The values of SHOWN that occur in the batch, and the selected one: with its label and count,
    None when nobody counts.
    """
    if batch.is_draft:
        numbers: dict[str, int | None] = {"bad": bad, "edited": None}
    else:
        numbers = {**batch.counts(), "doubled": batch.doubled, "bad": bad}
        # They are found among the repeats.
        del numbers[ItemState.EXCLUDED]
        numbers |= {"was-delivered": batch.delivered, "was-died": batch.died, "was-delayed": None}
    numbers["repeats"] = batch.repeats
    numbers.setdefault(asked, None)
    return [
        (value, SHOWN[value], number)
        for value, number in numbers.items()
        if value and (number != 0 or value == asked)
    ]


@dataclass(frozen=True)
class Verdict:
    """Targets with one verdict: a row of a dry run."""

    routes: Sequence[ReplayRoute]

    @property
    def first(self) -> ReplayRoute:
        return self.routes[0]

    @property
    def number(self) -> int:
        return sum(route.items_number for route in self.routes)


def fold_routes(routes: Iterable[ReplayRoute]) -> list[Verdict]:
    """One row for each verdict, in the order of the targets."""
    folded: dict[tuple[bool, str], list[ReplayRoute]] = {}
    for route in routes:
        # A verdict names its target; of two that end the same way, the words differ in it only.
        names = {"exchange": route.exchange, "key": route.routing_key}
        words = route.verdict
        for name in sorted(filter(None, names.values()), key=len, reverse=True):
            words = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "", words)
        folded.setdefault((route.is_good, words), []).append(route)
    return [Verdict(each) for each in folded.values()]


def redact_route(route: ReplayRoute) -> ReplayRoute:
    """The route to be shown, never to be saved, to whom its names are hidden."""
    shown = copy(route)
    shown.exchange = shown.routing_key = shown.why = shown.verdict = HIDDEN
    return shown


@dataclass(frozen=True)
class Failure:
    """One item. Of one that was dead-lettered again, `group` and `history` are those of the message
    as which it was parked again; without them, as long as nobody parks it.
    """

    item: ReplayItem
    group: MessageGroup | None = None
    history: History = field(default_factory=History)


def read_failures(batch: ReplayBatch, rules: Redaction) -> list[Failure]:
    """The first MOST_FAILURES; the texts as `rules` let them be seen, the history in full."""
    if not batch.died and not batch.remaining:
        return []
    rows = batch.items.filter(Q(outcome=ReplayOutcome.DIED) | Q(state__in=REMAINING))
    rows = rows.select_related("died_as__group").order_by("position")
    return [
        Failure(item, seen_group(again.group, rules), read_history(again.without_body.headers))
        if (again := item.died_as) is not None
        else Failure(item)
        for item in rows[:MOST_FAILURES]
    ]


def count_died_before(batch: ReplayBatch) -> int:
    """How many messages of a draft died after an earlier replay; 0 for a large draft."""
    if batch.selected > AT_ONCE:
        return 0
    ids = batch.items.exclude(parked_message=None).order_by().values("parked_message")
    return ReplayItem.objects.filter(died_as__in=ids).values("died_as").distinct().count()


def make_replay_record(batch: ReplayBatch) -> dict[str, Any]:
    """The state and the counts of a replay: a row of the API's list.

    `errors` and `worker_is_missing` are None; `make_outcome_record` has them.
    """
    own = batch.work
    moments = {BatchState.WAITING: batch.publish_at, BatchState.WATCHING: batch.canary_until}
    until_at = moments.get(BatchState(batch.state))
    return {
        "kind": "replay",
        "replay": batch.pk,
        "broker": batch.broker.slug,
        "state": batch.state,
        "why": batch.state_why,
        "until_at": format_moment(until_at),
        "is_resting": is_resting(batch),
        "hindered_by": own.error if own and not own.is_ended else "",
        "selected": batch.selected,
        **batch.counts(),
        "may_be_duplicated": batch.doubled,
        "delivered": batch.delivered,
        "died_again": batch.died,
        "errors": None,
        "worker_is_missing": None,
        "name": batch.name,
        "approval_requested_by": batch.requested_by.get_username() if batch.requested_by else None,
        "approval_request": name_request(batch),
    }


def make_outcome_record(batch: ReplayBatch, *, hides: bool = False) -> dict[str, Any]:
    """A line of the command, and the API's answer: `errors` once the replay rests.

    With `hides` the texts of errors are redacted.
    """
    record = make_replay_record(batch) | {"worker_is_missing": is_missing(REPLAYS)}
    if not record["is_resting"]:
        return record
    failed = batch.items.exclude(state=ItemState.DONE).exclude(error="").order_by()
    errors = failed.values("error").annotate(messages=Count("pk")).order_by("-messages", "error")
    return record | {
        "errors": [one | {"error": HIDDEN} if hides else one for one in errors[:MOST_ERRORS]]
    }


def make_dry_run_record(batch: ReplayBatch, rules: Redaction = NOTHING) -> dict[str, Any]:
    """The dry run as the API answers it; the command prints `routes` and `warnings` apart."""
    found, hides = summarize_dry_run(batch), hides_targets(batch, rules)
    return {
        "kind": "dry-run",
        "replay": batch.pk,
        "description": describe_source(batch, rules),
        "state": batch.state,
        "selected": batch.selected,
        "repeats": batch.repeats,
        "excluded": batch.excluded,
        "good": found.number - found.bad,
        "endings": [
            {"messages": one.number, "ending": one.words, "is_good": one.is_good}
            for one in found.endings
        ],
        "routes": [
            {"kind": "route", "messages": route.items_number}
            | make_route_record(redact_route(route) if hides else route)
            for route in batch.routes.filter(items_number__gt=0)
        ],
        "warnings": list_warnings(batch, hides=hides),
    }


def make_route_record(route: ReplayRoute) -> dict[str, Any]:
    return {
        "exchange": route.exchange,
        "routing_key": route.routing_key,
        "ending": route.ending,
        "is_good": route.is_good,
        "verdict": route.verdict,
        "after_ms": route.after_ms,
    }
