"""Regroups parked messages after the rule of what belongs together has changed.

Called by migrations, with the models as they were (`apps`). A group keeps its row where it can;
groups that are one by the new rule are joined, and one that is several is split. Counts, trends,
notes, owners, links and redirects go with the messages.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from delayboard.dead_letters.failure import Failure, failure_of
from delayboard.dead_letters.placeholders import put_placeholders
from topology.broker.properties import read_properties
from topology.deaths import read_history
from topology.message import Message

# SQLite takes at most 32,766 values in one statement (sqlite.org/limits.html).
AT_ONCE = 500
LONGEST_NOTE = 10_000
STATES = ("parked", "discarded", "replaying", "handed", "replayed")
REGROUPED = "The groups of these messages were joined by an upgrade: choose them again."


@dataclass
class _Share:
    """The messages of one old group with one failure."""

    keys: array[int] = field(default_factory=lambda: array("q"))
    states: Counter[str] = field(default_factory=Counter)
    hours: Counter[datetime] = field(default_factory=Counter)
    first_at: datetime | None = None
    last_at: datetime | None = None

    def add(self, key: int, state: str, at: datetime) -> None:
        self.keys.append(key)
        self.states[state] += 1
        self.hours[at.replace(minute=0, second=0, microsecond=0)] += 1
        self.first_at = min(self.first_at or at, at)
        self.last_at = max(self.last_at or at, at)


Shares = dict[int, dict[Failure, _Share]]


def regroup(apps: Any) -> None:
    """Puts every message of every broker into the group of its failure."""
    for broker in apps.get_model("topology", "Broker").objects.values_list("pk", flat=True):
        _Regrouping(apps, broker).run()


class _Regrouping:
    def __init__(self, apps: Any, broker: int) -> None:
        def table(name: str) -> Any:
            return apps.get_model("delayboard", name).objects

        self._letters = table("DeadLetter").filter(broker=broker)
        self._groups, self._hours = table("LetterGroup"), table("GroupHour")
        self._redirects, self._batches = table("RedirectRule"), table("ReplayBatch")
        self._changes = table("LetterChange")
        self._works = apps.get_model("topology", "Work").objects
        self._broker = broker
        self._old: dict[int, Any] = {g.pk: g for g in self._groups.filter(broker=broker)}
        self._rules = {rule.group_id: rule for rule in self._redirects.filter(group__broker=broker)}

    def run(self) -> None:
        shares = self._read()
        main = {pk: self._main(group, shares.get(pk, {})) for pk, group in self._old.items()}
        homes = self._homes(main)
        givers = self._givers(shares, main)
        described = {failure: self._describe(groups) for failure, groups in givers.items()}
        for failure, groups in givers.items():
            if failure not in homes:
                homes[failure] = self._create(failure, groups, shares)
        for pk, parts in shares.items():
            for failure, share in parts.items():
                if homes[failure] != pk:
                    self._move(share, pk, homes[failure])
        for pk, failure in main.items():
            if homes[failure] != pk:
                self._join(pk, homes[failure])
            elif len(shares.get(pk, {})) > 1:
                self._stop_pending(pk)
        for failure, home in homes.items():
            columns = {"fingerprint": failure.fingerprint, **asdict(failure), **described[failure]}
            self._groups.filter(pk=home).update(**columns)
            self._redirect(home, givers[failure])

    def _read(self) -> Shares:
        shares: Shares = {}
        columns = ("pk", "group_id", "state", "exchange", "routing_key", "properties")
        rows = self._letters.order_by("pk").values_list(*columns, "died_at", "parked_at")
        for pk, group, state, exchange, key, raw, died_at, parked_at in rows.iterator():
            properties = read_properties(bytes(raw))
            message = Message(exchange, key, properties, b"")
            failure = failure_of(message, read_history(properties.headers))
            share = shares.setdefault(group, {}).setdefault(failure, _Share())
            share.add(pk, state, died_at or parked_at)
        return shares

    def _main(self, group: Any, parts: dict[Failure, _Share]) -> Failure:
        """What most of its messages failed of; without any, what its columns say."""
        if parts:
            return max(parts, key=lambda one: (len(parts[one].keys), one.fingerprint))
        said = Failure(
            *(group.died_in, group.reason, group.exchange, group.routing_key),
            *(group.exception, group.message_type),
        )
        return replace(said, routing_key=put_placeholders(said.routing_key))

    def _homes(self, main: dict[int, Failure]) -> dict[Failure, int]:
        """The row that each failure keeps: the largest of the groups that it is the main one of."""
        ordered = sorted(main, key=lambda pk: (self._old[pk].total, -pk))
        return {main[pk]: pk for pk in ordered}

    def _givers(self, shares: Shares, main: dict[int, Failure]) -> dict[Failure, list[Any]]:
        """The old groups that a failure's messages were in, the one with most of them first."""
        found: dict[Failure, dict[int, int]] = {}
        for pk, parts in shares.items():
            for failure, share in parts.items():
                found.setdefault(failure, {})[pk] = len(share.keys)
        for pk, failure in main.items():
            found.setdefault(failure, {}).setdefault(pk, 0)
        return {
            failure: [self._old[pk] for pk in sorted(sizes, key=lambda pk: (-sizes[pk], pk))]
            for failure, sizes in found.items()
        }

    def _describe(self, groups: Sequence[Any]) -> dict[str, Any]:
        links = list(dict.fromkeys(group.link for group in groups if group.link))
        notes = [group.note for group in groups if group.note]
        notes += [f"Link: {link}" for link in links[1:]]
        if len(rules := self._distinct_rules(groups)) > 1:
            places = [f"{rule[0] or '(default)'} {rule[1]}" for rule in rules if rule]
            notes.append(f"An upgrade joined groups with different redirects: {'; '.join(places)}.")
        owners = (group.owner_id for group in groups if group.owner_id)
        return {
            "note": "\n\n".join(dict.fromkeys(notes))[:LONGEST_NOTE],
            "owner_id": next(owners, None),
            "link": links[0] if links else "",
        }

    def _distinct_rules(self, groups: Iterable[Any]) -> set[tuple[str, str] | None]:
        rules = (self._rules.get(group.pk) for group in groups)
        return {rule and (rule.exchange, rule.routing_key) for rule in rules}

    def _redirect(self, home: int, groups: Sequence[Any]) -> None:
        """One rule of all holds on; where they differ, each message goes where it came from."""
        rule = self._rules.get(groups[0].pk)
        self._redirects.filter(group=home).delete()
        if rule is not None and len(self._distinct_rules(groups)) == 1:
            self._redirects.create(
                group_id=home,
                exchange=rule.exchange,
                routing_key=rule.routing_key,
                set_by_id=rule.set_by_id,
                set_at=rule.set_at,
            )

    def _create(self, failure: Failure, groups: Sequence[Any], shares: Shares) -> int:
        parts = [share for g in groups if (share := shares.get(g.pk, {}).get(failure))]
        row = self._groups.create(
            broker_id=self._broker,
            fingerprint=failure.fingerprint,
            first_at=min(share.first_at for share in parts if share.first_at),
            last_at=max(share.last_at for share in parts if share.last_at),
        )
        return int(row.pk)

    def _move(self, share: _Share, group: int, home: int) -> None:
        for start in range(0, len(share.keys), AT_ONCE):
            some = list(share.keys[start : start + AT_ONCE])
            self._letters.filter(pk__in=some).update(group_id=home)
        numbers = {**share.states, "total": len(share.keys)}
        self._count(group, {name: -number for name, number in numbers.items()})
        self._count(home, numbers)
        for hour, number in share.hours.items():
            self._count_hour(group, hour, -number)
            self._count_hour(home, hour, number)

    def _count(self, group: int, numbers: dict[str, int]) -> None:
        changes = {name: Greatest(F(name) + number, 0) for name, number in numbers.items()}
        self._groups.filter(pk=group).update(**changes)

    def _count_hour(self, group: int, hour: datetime, number: int) -> None:
        """Hours of messages that an import or an old clock counted otherwise end at none."""
        row = self._hours.filter(group_id=group, hour=hour).first()
        died = max(0, (row.died if row else 0) + number)
        if row is None:
            if died:
                self._hours.create(group_id=group, hour=hour, died=died)
        elif died:
            self._hours.filter(pk=row.pk).update(died=died)
        else:
            row.delete()

    def _join(self, group: int, home: int) -> None:
        """The rest of an emptied group: what it counted of messages that were deleted since."""
        left, into = self._groups.get(pk=group), self._groups.get(pk=home)
        self._count(home, {name: getattr(left, name) for name in (*STATES, "total")})
        for row in self._hours.filter(group_id=group):
            self._count_hour(home, row.hour, row.died)
        self._groups.filter(pk=home).update(
            first_at=min(left.first_at, into.first_at), last_at=max(left.last_at, into.last_at)
        )
        self._stop_pending(group)
        self._batches.filter(group_id=group).update(group_id=home)
        self._changes.filter(group_id=group).update(group_id=home)
        self._hours.filter(group_id=group).delete()
        self._redirects.filter(group_id=group).delete()
        self._groups.filter(pk=group).delete()

    def _stop_pending(self, group: int) -> None:
        """What was asked of the group before means other messages now."""
        preparing = self._batches.filter(group_id=group, state="preparing")
        preparing.update(group_id=None)
        works = self._changes.filter(group_id=group).values("work")
        self._works.filter(pk__in=works, state__in=("waiting", "running")).update(
            state="cancelled", error=REGROUPED, ended_at=timezone.now(), fence=F("fence") + 1
        )
