"""A query for one broker: which groups and queues its words name, and what is left to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import merge

from django.db import connection
from django.db.models import QuerySet

from delayboard.dead_letters.placeholders import put_placeholders
from delayboard.dead_letters.search.query import Compared, Condition, Pattern, Query, fold
from delayboard.models import DeadLetter, LetterGroup, LetterState
from topology.models import Broker

# The column of a group that a field is about.
IN_GROUP = {
    "reason": "reason",
    "died": "died_in",
    "exchange": "exchange",
    "key": "routing_key",
    "exception": "exception",
    "type": "message_type",
    "group": "pk",
}
# So many are read each on its own, in order; more are told apart row by row.
MOST_LEGS = 100
FEW_LEGS = 4
MOST_QUEUES = 500
LEAST_READ = 50


@dataclass(frozen=True)
class Asked:
    """`groups` and `queues` are those that fit, None where all do. What was read is kept."""

    broker: Broker
    query: Query
    groups: frozenset[int] | None = None
    queues: tuple[str, ...] | None = None

    @property
    def states(self) -> tuple[str, ...]:
        state = self.query.state
        return tuple(LetterState.values) if state == "any" else (state,)

    @property
    def is_impossible(self) -> bool:
        """Whether no group or no queue fits."""
        return self.groups == frozenset() or self.queues == ()

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """Those that have to be looked at letter by letter."""
        resolved = {*IN_GROUP, *(("queue",) if self.queues is not None else ())}
        return tuple(one for one in self.query.conditions if one.field not in resolved)

    @cached_property
    def is_read_whole(self) -> bool:
        """Whether the rows of `legs` are the answer, without looking at any."""
        rest = self.conditions or self.query.words or self.query.repeats is not None
        return not rest and self.legs_are_exact

    @cached_property
    def legs_are_exact(self) -> bool:
        return not (self._has_many_groups or self._has_many_queues or self._has_both)

    @property
    def _has_both(self) -> bool:
        return self.groups is not None and self.queues is not None

    @property
    def _has_many_groups(self) -> bool:
        return self.groups is not None and len(self.groups) > MOST_LEGS

    @property
    def _has_many_queues(self) -> bool:
        return self.queues is not None and len(self.queues) > MOST_LEGS

    @property
    def _legs_number(self) -> int:
        """How many `legs` there are; making them all takes long."""
        if self.groups is not None and not self._has_many_groups:
            return len(self.states) * len(self.groups)
        if self.queues is not None and not self._has_many_queues:
            return len(self.states) * len(self.queues)
        return len(self.states)

    def legs(self, before: int | None) -> list[QuerySet[DeadLetter, int]]:
        """Ids from the newest on, in several series, each of them in the order of an index."""
        rows = DeadLetter.objects.order_by("-pk")
        if before is not None:
            rows = rows.filter(pk__lt=before)
        series: list[QuerySet[DeadLetter]] = []
        for state in self.states:
            if self.groups is not None and not self._has_many_groups:
                series += [rows.filter(group=pk, state=state) for pk in sorted(self.groups)]
            elif self.queues is not None and not self._has_many_queues:
                of_broker = rows.filter(broker=self.broker, state=state)
                series += [of_broker.filter(queue=name) for name in self.queues]
            else:
                series.append(rows.filter(broker=self.broker, state=state))
        return [one.values_list("pk", flat=True) for one in series]

    def near(self, before: int | None, number: int) -> list[int]:
        """Those of the newest `number` letters that are of these groups and queues; one question
        instead of one for each leg. Empty where there are few legs.
        """
        is_one_state = len(self.states) == 1
        if self.is_impossible or not is_one_state or self._legs_number <= FEW_LEGS:
            return []
        rows = DeadLetter.objects.filter(broker=self.broker, state=self.states[0])
        rows = rows if before is None else rows.filter(pk__lt=before)
        columns = rows.order_by("-pk").values_list("pk", "group", "queue")
        return [
            pk
            for pk, group, queue in columns[:number]
            if (self.groups is None or group in self.groups)
            and (self.queues is None or queue in self.queues)
        ]

    def newest(self, before: int | None, chunk: int = 500) -> Iterator[int]:
        """Ids of what may fit, from the newest on."""
        if self.is_impossible:
            return iter(())
        legs = self.legs(before)
        size = max(LEAST_READ, chunk // max(1, len(legs)))
        return merge(*(_read(leg, size) for leg in legs), reverse=True)


def _read(leg: QuerySet[DeadLetter, int], size: int) -> Iterator[int]:
    rest = leg
    while ids := list(rest[:size]):
        yield from ids
        if len(ids) < size:
            return
        rest = leg.filter(pk__lt=ids[-1])


def ask(broker: Broker, query: Query) -> Asked:
    """Find out which groups and queues of the broker the query means."""
    return Asked(broker, query, _groups(broker, query), _queues(broker, query))


def _groups(broker: Broker, query: Query) -> frozenset[int] | None:
    asked = [one for one in query.conditions if one.field in IN_GROUP]
    if not asked:
        return None
    columns = ["pk", "merged_into", *(IN_GROUP[one.field] for one in asked)]
    rows = LetterGroup.objects.filter(broker=broker).order_by().values_list(*columns)
    return frozenset(
        pk
        for pk, shown_in, *values in rows
        if all(_is_meant(one, value, shown_in) for one, value in zip(asked, values, strict=True))
    )


def _is_meant(condition: Condition, value: str | int, shown_in: int | None) -> bool:
    """Whether a group is; `group:` with a number means those merged into that one too."""
    holds = _holds(condition, value)
    if condition.field != "group" or shown_in is None:
        return holds
    in_shown = _holds(condition, shown_in)
    return holds and in_shown if condition.is_negated else holds or in_shown


def _holds(condition: Condition, value: str | int) -> bool:
    wanted = condition.value
    if isinstance(wanted, Pattern):
        fits = wanted.fits(fold(str(value)))
        if condition.field == "key" and wanted.is_exact:
            # A group's key has placeholders: a whole key finds the group that it belongs to.
            fits = fits or fold(put_placeholders(wanted.pieces[0])) == fold(str(value))
    else:
        assert isinstance(wanted, Compared)
        fits = wanted.fits(float(value))
    return fits != condition.is_negated


def _queues(broker: Broker, query: Query) -> tuple[str, ...] | None:
    """None also where there are too many to be named: then rows are told apart."""
    asked = [one for one in query.conditions if one.field == "queue"]
    if not asked:
        return None
    names = queue_names(broker, MOST_QUEUES + 1)
    if len(names) > MOST_QUEUES:
        return None
    return tuple(name for name in names if all(_holds(one, name) for one in asked))


def queue_names(broker: Broker, most: int) -> list[str]:
    """The first queues that letters of the broker were parked from; each is a step in an index."""
    with connection.cursor() as cursor:
        cursor.execute(NAMES, [broker.pk, broker.pk, most])
        return [row[0] for row in cursor.fetchall()]


NAMES = """
    WITH RECURSIVE known(name) AS (
        SELECT min(queue) FROM delayboard_deadletter WHERE broker_id = %s
        UNION ALL
        SELECT (
            SELECT min(queue) FROM delayboard_deadletter WHERE broker_id = %s AND queue > known.name
        ) FROM known WHERE known.name IS NOT NULL
    )
    SELECT name FROM known WHERE name IS NOT NULL LIMIT %s
"""
