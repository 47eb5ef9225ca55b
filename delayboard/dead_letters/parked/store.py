"""Parked messages: the one place that writes them, changes their states and counts groups."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import AutoField, Count, F, Model
from django.db.models.functions import Greatest, Least

from delayboard.dead_letters.parked.failure import Failure, failure_of, fit_column
from delayboard.models import Body, GroupHour, MessageGroup, ParkedMessage, ParkedState, ParkSession
from delayboard.models.dead_letter import replayed_messages_returned
from topology.clients.conventions import Convention
from topology.database.select_keys import match_keys
from topology.deaths import read_history
from topology.message import REPLAY_HEADER, Message, Properties
from topology.models import Broker
from topology.models.client_convention import read_conventions

# Largest number of deaths that a column holds; a header can claim more.
MOST_DEATHS = 2**31 - 1
# Earliest time in x-death: no broker's clock writes an earlier one.
FIRST_YEAR = datetime(2000, 1, 1, tzinfo=UTC)
AHEAD = timedelta(days=1)
# Rows of one statement: SQLite takes at most 32,766 values (sqlite.org/limits.html).
AT_ONCE = 500
# Ids of one statement: SQLite takes at most a million bytes (sqlite.org/limits.html).
LOCKED_AT_ONCE = 1000


class ReturnedMessage(NamedTuple):
    """A message that names a replay; `message` is the id of its row, if it was parked."""

    properties: Properties
    content_id: str
    sha256: str
    parked_message: int | None = None


class Prepared(NamedTuple):
    """A message with everything that is computed from it before the write.

    `first_at` is its first failure according to its headers.
    """

    message: Message
    failure: Failure
    sha256: str
    content_id: str
    deaths: int
    first_at: datetime | None

    def died_at(self, now: datetime) -> datetime | None:
        """The time of its first failure; None when it is not plausible."""
        at = self.first_at
        return at if at is not None and FIRST_YEAR <= at <= now + AHEAD else None


def prepare(message: Message, queue: str, own: Sequence[Convention] = ()) -> Prepared:
    """Pure: never fails, whatever the message of `queue` holds."""
    history = read_history(message.headers)
    first = history.first_failure or next(iter(history.deaths), None)
    return Prepared(
        message,
        failure_of(message, history, queue, own),
        hashlib.sha256(message.body).hexdigest(),
        message.content_id,
        min(history.total, MOST_DEATHS),
        first.first_at if first else None,
    )


def put(
    broker: Broker,
    queue: str,
    messages: Sequence[Message],
    *,
    at: datetime,
    session: ParkSession | None = None,
    by: Any = None,
) -> list[ParkedMessage]:
    """Write messages of `queue`, in order, in the caller's transaction."""
    own = read_conventions(broker)
    prepared = [prepare(message, queue, own) for message in messages]
    keys = put_prepared(broker, queue, prepared, at=at, session=session, by=by)
    return list(ParkedMessage.objects.filter(pk__in=keys).order_by("pk"))


def put_prepared(
    broker: Broker,
    queue: str,
    prepared: Sequence[Prepared],
    *,
    at: datetime,
    session: ParkSession | None = None,
    by: Any = None,
    repeats: Sequence[int | None] = (),
) -> list[int]:
    """The same; returns the ids. `repeats` names the earlier message that each may repeat."""
    bodies = {p.sha256: p.message.body for p in prepared}
    # In one order everywhere: two that write the same keys in another would wait for each other.
    insert(
        Body(),
        [{"sha256": key, "data": bodies[key], "size": len(bodies[key])} for key in sorted(bodies)],
        ignore_conflicts=True,
    )
    groups = _count_states(broker, prepared, at)
    template = ParkedMessage(
        broker=broker,
        queue=fit_column(queue),
        session=session,
        parked_at=at,
        state=ParkedState.PARKED,
        state_at=at,
        state_by=by,
    )
    again = repeats or [None] * len(prepared)
    moment = cache(connection.ops.adapt_datetimefield_value)
    keys = insert(
        template,
        [
            {
                "group_id": groups[p.failure],
                "exchange": fit_column(p.message.exchange),
                "routing_key": fit_column(p.message.routing_key),
                "properties": p.message.properties.raw,
                "body_id": p.sha256,
                "size": len(p.message.body),
                "redelivered": p.message.redelivered,
                "content_id": p.content_id,
                "message_id": fit_column(p.message.properties.message_id or ""),
                "deaths": p.deaths,
                "died_at": moment(p.died_at(at)),
                "repeat_of_id": earlier,
            }
            for p, earlier in zip(prepared, again, strict=True)
        ],
    )
    named = [
        (tag, ReturnedMessage(p.message.properties, p.content_id, p.sha256, key))
        for key, p, earlier in zip(keys, prepared, again, strict=True)
        # A possible repeat came back with the row that it repeats.
        if earlier is None and (tag := p.message.tag(REPLAY_HEADER))
    ]
    if named:
        replayed_messages_returned.send(ReturnedMessage, broker=broker, returned=named, at=at)
    return keys


def insert(
    template: Model, rows: Sequence[Mapping[str, Any]], *, ignore_conflicts: bool = False
) -> list[int]:
    """Insert rows that are as `template` but for these columns; their keys, in order.

    The values are as the database's driver takes them: making a model of each row, and asking
    each field for each value, takes three times as long.
    """
    if not rows:
        return []
    fields = {
        field.attname: field
        for field in template._meta.concrete_fields
        if not isinstance(field, AutoField)
    }
    stated = [name for name in rows[0] if name in fields]
    alone = [name for name in fields if name not in stated]
    shared = [fields[name].get_db_prep_save(getattr(template, name), connection) for name in alone]
    quoted = connection.ops.quote_name
    into = f"INSERT INTO {quoted(template._meta.db_table)}"
    columns = ", ".join(quoted(str(fields[name].column)) for name in (*alone, *stated))
    one = f"({', '.join(['%s'] * len(fields))})"
    end = "ON CONFLICT DO NOTHING" if ignore_conflicts else f"RETURNING {quoted('id')}"
    keys: list[int] = []
    with connection.cursor() as cursor:
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            values: list[Any] = []
            for row in some:
                values += shared
                values += [row[name] for name in stated]
            cursor.execute(
                f"{into} ({columns}) VALUES {', '.join([one] * len(some))} {end}", values
            )
            if not ignore_conflicts:
                keys += [key for (key,) in cursor.fetchall()]
    return sorted(keys)


def _count_states(broker: Broker, prepared: Sequence[Prepared], at: datetime) -> dict[Failure, int]:
    """The keys of these messages' groups, with the messages counted in.

    Rows are locked in the order of all that change counts: first groups that are new, by
    fingerprint, then groups by their keys; an hour is changed by who has its group.
    """
    moments: dict[Failure, list[datetime]] = {}
    for one in prepared:
        moments.setdefault(one.failure, []).append(one.died_at(at) or at)
    keys = _groups(broker, moments)
    for failure, key in sorted(keys.items(), key=itemgetter(1)):
        _count(key, moments[failure])
    return keys


def _groups(broker: Broker, moments: Mapping[Failure, list[datetime]]) -> dict[Failure, int]:
    """The groups' keys; those that are not there yet are begun, with nothing in them."""
    wanted = {failure.fingerprint: failure for failure in moments}
    rows = MessageGroup.objects.filter(broker=broker, fingerprint__in=wanted)
    found = dict(rows.values_list("fingerprint", "pk"))
    if missing := sorted(wanted.keys() - found.keys()):
        MessageGroup.objects.bulk_create(
            [
                MessageGroup(
                    broker=broker,
                    fingerprint=fingerprint,
                    first_at=min(moments[wanted[fingerprint]]),
                    last_at=max(moments[wanted[fingerprint]]),
                    **asdict(wanted[fingerprint]),
                )
                for fingerprint in missing
            ],
            ignore_conflicts=True,
        )
        found = dict(rows.all().values_list("fingerprint", "pk"))
    return {failure: found[fingerprint] for fingerprint, failure in wanted.items()}


def _count(group: int, moments: list[datetime]) -> None:
    MessageGroup.objects.filter(pk=group).update(
        parked=F("parked") + len(moments),
        total=F("total") + len(moments),
        first_at=Least(F("first_at"), min(moments)),
        last_at=Greatest(F("last_at"), max(moments)),
    )
    hours: Counter[datetime] = Counter()
    for moment, number in Counter(moments).items():
        hours[moment.replace(minute=0, second=0, microsecond=0)] += number
    for hour, number in sorted(hours.items()):
        _, begins = GroupHour.objects.get_or_create(
            group_id=group, hour=hour, defaults={"died": number}
        )
        if not begins:
            GroupHour.objects.filter(group=group, hour=hour).update(died=F("died") + number)


def change_parked_messages(
    keys: Iterable[int],
    before: Collection[ParkedState],
    after: ParkedState,
    *,
    by: Any,
    at: datetime,
) -> list[int]:
    """Change those of the messages that are in one of the states `before`; their keys, in order.

    In the caller's transaction. `by` is an account, its key, or None.
    """
    return change_each(dict.fromkeys(keys, after), before, by=by, at=at)


def change_each(
    wanted: Mapping[int, ParkedState],
    before: Collection[ParkedState],
    *,
    by: Any,
    at: datetime,
) -> list[int]:
    """The same with a state for each message.

    First all messages are locked by their keys, then all groups by theirs: whoever does both does
    it in this order, and so nobody waits in a circle.
    """
    ordered = sorted(wanted)
    groups: dict[int, Counter[str]] = {}
    changed: list[int] = []
    for start in range(0, len(ordered), LOCKED_AT_ONCE):
        some = ordered[start : start + LOCKED_AT_ONCE]
        if connection.features.has_select_for_update:
            rows = ParkedMessage.objects.filter(match_keys(some)).order_by("pk")
            # A parker that names one as an earlier repeat must not wait for it: it holds the group.
            list(rows.select_for_update(no_key=True).values_list("pk"))
        for after in sorted({wanted[key] for key in some}):
            keys = [key for key in some if wanted[key] == after]
            changed += _change_locked(keys, before, after, groups, state_at=at, state_by=by)
    for group, counts in sorted(groups.items()):
        changes = {state: F(state) + number for state, number in counts.items() if number}
        if changes:
            MessageGroup.objects.filter(pk=group).update(**changes)
    return sorted(changed)


def _change_locked(
    keys: list[int],
    before: Collection[ParkedState],
    after: ParkedState,
    groups: dict[int, Counter[str]],
    **values: Any,
) -> list[int]:
    """Change locked messages, and add to `groups` what becomes of their counts."""
    # With a condition on states, SQLite would read all messages in these states.
    rows = ParkedMessage.objects.filter(match_keys(keys)).order_by()
    counted = list(rows.values_list("group_id", "state").annotate(Count("pk")))
    if sum(number for _, state, number in counted if state in before) < len(keys):
        found = rows.order_by("pk").values_list("pk", "state")
        keys = [key for key, state in found if state in before]
        if not keys:
            return []
        rows = ParkedMessage.objects.filter(match_keys(keys)).order_by()
    rows.update(state=after, **values)
    for group, state, number in counted:
        if state in before:
            counts = groups.setdefault(group, Counter())
            counts[state] -= number
            counts[after] += number
    return keys
