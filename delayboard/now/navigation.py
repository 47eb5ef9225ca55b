"""The pages of the header, which of them has something to do, and its search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any

from django.db import connection
from django.db.models import Aggregate, CharField, Count, QuerySet, Sum, Value

from analytics.models import ScheduledMessage
from delayboard.dead_letters.parked import groups
from delayboard.models import BatchState, MessageGroup, ParkedMessage, ParkedText, ReplayBatch
from delayboard.models.replay import ENDED_BATCH
from delayboard.now.problems import WORST, Link
from topology import snapshots
from topology.content.text import SHORT_ID
from topology.definitions import PROBE_PREFIX, is_own_queue
from topology.models import Broker, Drift, FindingPeriod, MissingBinding, State, Topology
from topology.operations.finding_rows import count_open
from topology.patterns.table import KINDS
from topology.redaction import Redaction

SCHEDULED = "analytics:scheduled"
DEAD_LETTERS = "dead_letters"
REPLAYS = "replays"
TOPOLOGIES = "topology:topologies"
FINDINGS = "topology:findings_overview"
_OF_SYSTEM = (
    *("topology:brokers", "topology:audit", "retention", "alerts", "webhooks", "demo"),
    *("permissions", "group_roles", "sessions"),
)
# Most places of each kind; a longer text finds the others.
MOST = 8
LONGEST_TEXT = 200
SEARCHED = 100
# Text above the characters of any id.
LAST = "zzzz"
_ON_TOPOLOGIES = ("Publish", "Edit", "Delete")
_ON_QUEUES = ("Peek", "Park")
_ON_GROUPS = ("Replay", "Discard")
# What the page of a replay offers in its state. A paused one is found by “pause” too.
_ON_REPLAYS: Mapping[str, tuple[str, ...]] = {
    BatchState.PREPARING: ("Cancel",),
    BatchState.DRAFT: ("Start", "Cancel"),
    BatchState.WAITING: ("Pause", "Cancel"),
    BatchState.RUNNING: ("Pause", "Cancel"),
    BatchState.WATCHING: ("Pause", "Resume", "Cancel"),
    BatchState.PAUSED: ("Resume paused", "Cancel"),
}
# Words of a sentence without a meaning for the search, as in “publish to orders”.
_FILLERS = frozenset({"a", "the", "to", "into", "of", "in"})


@dataclass(frozen=True)
class Page:
    """A page by the name of its URL; `others` are pages that belong to it.

    `key` leads there after the key g. Of a page with `has_brokers` the address takes `?broker=`.
    Pages stand in groups: messages, structure, Delayboard itself.
    """

    label: str
    url_name: str
    key: str
    others: tuple[str, ...] = ()
    has_brokers: bool = True
    begins_group: bool = False


@dataclass(frozen=True)
class Badge:
    """A count of things to do, with its label; a bad one is highlighted."""

    words: str
    is_bad: bool = True
    number: int = 0


SYSTEM = Page("System", "system", "y", _OF_SYSTEM, has_brokers=False, begins_group=True)
PAGES = (
    Page("Now", "now", "n"),
    Page("Scheduled", SCHEDULED, "s"),
    Page("Retrying", "retrying_anywhere", "t"),
    Page("Dead letters", DEAD_LETTERS, "d"),
    Page("Replays", REPLAYS, "r"),
    Page("Topologies", TOPOLOGIES, "o", begins_group=True),
    Page("Findings", FINDINGS, "f"),
    Page("Reports", "analytics:reports", "e"),
    Page("Publish", "publish", "p", ("publication",)),
    SYSTEM,
)
BADGES = (
    (SCHEDULED, Badge("stuck")),
    (DEAD_LETTERS, Badge("parked", is_bad=False)),
    (REPLAYS, Badge("paused")),
    (TOPOLOGIES, Badge("not in sync")),
    (FINDINGS, Badge("open")),
)


def count_badges(brokers: Collection[Broker], now: datetime) -> Mapping[str, Badge]:
    """URL name -> badge, where there is something to do for these brokers."""
    ids = {broker.pk for broker in brokers}
    numbers = Counter[str]()
    with connection.cursor() as cursor:
        cursor.execute(*_write_statement())
        for name, broker_id, number in cursor.fetchall():
            if broker_id in ids:
                numbers[name] += number
    found = {name: replace(badge, number=numbers[name]) for name, badge in BADGES}
    if numbers[FINDINGS]:
        findings, worst = 0, 0
        for counts in count_open(brokers, now).values():
            findings += sum(counts.values())
            worst += sum(number for severity, number in counts.items() if severity.key in WORST)
        words = f"open, {worst} of them {WORST[0]} or {WORST[1]}" if worst else "open"
        found[FINDINGS] = Badge(words, is_bad=worst > 0, number=findings)
    return {name: badge for name, badge in found.items() if badge.number}


@cache
def _write_statement() -> tuple[str, tuple[Any, ...]]:
    """One query for all numbers by URL name and broker. Django writes it in 3 ms: once a process.

    Its number of findings has the muted ones too.
    """
    is_applied = {"topology__state": State.APPLIED}
    missing = MissingBinding.objects.filter(**is_applied)
    drifts = Drift.objects.filter(**is_applied)
    paused = ReplayBatch.objects.filter(state=BatchState.PAUSED)
    found = FindingPeriod.objects.filter(resolved_at=None)
    first, *others = (
        _group(missing, SCHEDULED, "topology__broker", Sum("stuck")),
        _group(MessageGroup.objects.all(), DEAD_LETTERS, "broker", Sum("parked")),
        _group(paused, REPLAYS, "broker", Count("pk")),
        _group(drifts, TOPOLOGIES, "topology__broker", Count("pk")),
        _group(found, FINDINGS, "broker", Count("pk")),
    )
    statement: tuple[str, tuple[Any, ...]] = first.union(*others, all=True).query.sql_with_params()
    return statement


def _group(rows: QuerySet[Any], name: str, broker: str, number: Aggregate) -> QuerySet[Any, Any]:
    named = rows.order_by().annotate(page=Value(name, CharField()))
    grouped: QuerySet[Any, Any] = named.values_list("page", broker).annotate(number=number)
    return grouped


@dataclass(frozen=True)
class Place:
    """`note` distinguishes it from others of this name."""

    link: Link
    note: str = ""


@dataclass(frozen=True)
class Rights:
    """What of the site a user may open beside the pages of brokers; `operated` are their ids."""

    operated: frozenset[int] = frozenset()
    may_administer: bool = False
    may_audit: bool = False


def find_places(
    text: str, brokers: Sequence[Broker], rules: Mapping[int, Redaction], rights: Rights
) -> list[tuple[str, list[Place]]]:
    """Kind -> the first MOST places; without a text the pages and actions."""
    words = text.casefold().split()
    if len(words) > 2:
        words = [words[0], *(word for word in words[1:] if word not in _FILLERS)]
    operated = [broker for broker in brokers if broker.pk in rights.operated]
    actions = (_actions(brokers, rights), _actions_on_objects(words, operated, rules))
    fitting = [place for some in actions for place in _fitting(words, some)]
    kinds = {"Pages": _fitting(words, _pages(rights)), "Actions": fitting}
    if words:
        kinds["Messages"] = _messages(text, brokers)
        kinds["Replays"] = _fitting(words, (place for _, place in _replays(brokers)))
        named = (Link(one.name, "topology:broker", (one.slug,)) for one in brokers)
        kinds["Brokers"] = _fitting(words, map(Place, named, (one.environment for one in brokers)))
        kinds["Topologies"] = _fitting(words, _topologies(brokers))
        kinds["Queues"] = _fitting(words, _queues(brokers))
        kinds["Groups of dead letters"] = _groups(text, brokers, rules)
    return [(kind, places) for kind, places in kinds.items() if places]


def _fitting(words: Sequence[str], places: Iterable[Place]) -> list[Place]:
    """The places whose label has every word; what begins with the first word comes first."""
    found = [one for one in places if all(word in one.link.label.casefold() for word in words)]
    start = words[0] if words else ""
    found.sort(key=lambda one: not one.link.label.casefold().startswith(start))
    return found[:MOST] if words else found


def _pages(rights: Rights) -> Iterator[Place]:
    for page in PAGES:
        yield Place(Link(page.label, page.url_name))
    yield Place(Link("Stuck messages", "analytics:scheduled", query={"stuck": "1"}))
    yield Place(Link("Overdue messages", "analytics:scheduled", query={"overdue": "1"}))
    next_hour = {"from": "now", "until": "+1h"}
    yield Place(Link("Due next: messages of the next hour", "analytics:scheduled", query=next_hour))
    if rights.may_administer:
        yield Place(Link("Alerts: e-mail, webhook, Slack, Teams, PagerDuty", "alerts"))
        yield Place(Link("Webhooks: events for programs", "webhooks"))
        yield Place(Link("Imports of logs", "analytics:imports"))
    for theme in ("Dark", "Light", "System"):
        # theme.js does it; without JavaScript a page has the colours of the system.
        fragment = f"theme-{theme.lower()}"
        yield Place(Link(f"{theme} theme", "preferences", fragment=fragment), "this browser")
    yield Place(Link("Brokers", "topology:brokers"))
    yield Place(Link("Compare patterns", "topology:patterns", fragment="comparison"))
    yield Place(Link("Changes of scheduled messages", "scheduled_changes"))
    yield Place(Link("Data retention", "retention"))
    yield Place(Link("Permissions", "permissions"))
    yield Place(Link("Sessions", "sessions"))
    if rights.may_audit:
        yield Place(Link("Audit", "topology:audit"))


def _actions(brokers: Iterable[Broker], rights: Rights) -> Iterator[Place]:
    if rights.operated:
        yield Place(Link("Publish message", "publish"))
        yield Place(Link("Create topology", "topology:patterns"))
    if rights.may_administer:
        yield Place(Link("Add broker", "topology:broker_add"))
    yield Place(Link("Change password", "password"))
    for broker in brokers:
        arguments = (broker.slug,)
        yield Place(Link(f"Trace route on {broker.name}", "topology:trace_route", arguments))
        yield Place(Link(f"Configure firehose of {broker.name}", "firehose", arguments))
        yield Place(Link(f"Search parked messages of {broker.name}", "parked_messages", arguments))
        yield Place(Link(f"Search live queues of {broker.name}", "live_search", arguments))
        adopt = f"Adopt discovered topology of {broker.name}"
        yield Place(Link(adopt, "topology:discovered", arguments))


def _actions_on_objects(
    words: Sequence[str], brokers: Sequence[Broker], rules: Mapping[int, Redaction]
) -> Iterator[Place]:
    """What a text asks to do with a topology, queue or group; its first word is the verb.

    Each leads to the page with the button, or the form.
    """
    if len(words) < 2:
        return
    for topology in _topology_rows(brokers) if _is_verb(words[0], *_ON_TOPOLOGIES) else ():
        name, arguments, note = topology.name, (topology.slug,), topology.broker.name
        if topology.state == State.APPLIED:
            query = {"topology": topology.slug}
            yield Place(Link(f"Publish through {name}", "publish", query=query), note)
        if topology.pattern.FIELDS:
            yield Place(Link(f"Edit topology {name}", "topology:topology_edit", arguments), note)
        settings, fragment = "topology:topology_settings", "deletion"
        yield Place(Link(f"Delete topology {name}", settings, arguments, fragment=fragment), note)
    for place in _queues(brokers) if _is_verb(words[0], *_ON_QUEUES) else ():
        for verb in _ON_QUEUES:
            label = f"{verb} queue {place.link.label}"
            yield Place(replace(place.link, label=label, fragment=verb.lower()), place.note)
    if _is_verb(words[0], *chain.from_iterable(_ON_REPLAYS.values())):
        for row, place in _replays(brokers):
            for verb in _ON_REPLAYS[row.state]:
                link = replace(place.link, label=f"{verb} {place.link.label.casefold()}")
                yield Place(link, place.note)
    if _is_verb(words[0], *_ON_GROUPS):
        text = " ".join(word for word in words[1:] if word != "group")
        for place in _groups(text, brokers, rules):
            for verb in _ON_GROUPS:
                label = f"{verb} group {place.link.label}"
                yield Place(replace(place.link, label=label, fragment="actions"), place.note)


def _is_verb(word: str, *verbs: str) -> bool:
    return any(verb.casefold().startswith(word) for verb in verbs)


def _topologies(brokers: Sequence[Broker]) -> Iterator[Place]:
    for row in _topology_rows(brokers):
        note = f"{KINDS[row.kind].EXPLANATION.title}, {row.broker.name}"
        yield Place(Link(row.name, "topology:topology", (row.slug,)), note)


def _topology_rows(brokers: Sequence[Broker]) -> QuerySet[Topology]:
    rows = Topology.objects.filter(broker__in=brokers).exclude(state=State.DELETED)
    return rows.select_related("broker")


def _queues(brokers: Iterable[Broker]) -> Iterator[Place]:
    """The queues from the snapshots that this process has: a search never waits for a broker."""
    for broker in brokers:
        known = snapshots.latest(broker.pk)
        if known is None or known.snapshot is None:
            continue
        names = (queue.name for queue in known.snapshot.definitions.queues)
        # A delay queue of a probe has the name of the probe queue in its own.
        others = (name for name in names if not is_own_queue(name) and PROBE_PREFIX not in name)
        for name in sorted(others):
            link = Link(name, "dead_letter_queue", (broker.slug,), {"name": name})
            yield Place(link, broker.name)


def _groups(text: str, brokers: Collection[Broker], rules: Mapping[int, Redaction]) -> list[Place]:
    """The groups as the rules of each broker let them be seen."""
    shown = groups.page(brokers, groups.GroupFilter(text=text), rules).rows[:MOST]
    links = (Link(str(one), "message_group", (one.broker.slug, str(one.pk))) for one in shown)
    return list(map(Place, links, (one.broker.name for one in shown)))


def _replays(brokers: Sequence[Broker]) -> Iterator[tuple[ReplayBatch, Place]]:
    """The replays by number that have not ended; whatever their number, a hundred are searched."""
    rows = ReplayBatch.objects.filter(broker__in=brokers).exclude(state__in=ENDED_BATCH)
    for row in rows.select_related("broker").order_by("-pk")[:SEARCHED]:
        note = f"{row.get_state_display()}, {row.broker.name}"
        yield row, Place(Link(f"Replay {row.pk}", "replay_batch", (str(row.pk),)), note)


def _messages(text: str, brokers: Sequence[Broker]) -> list[Place]:
    """With this message id, or hash of their content where they have none; newest first.

    From as many characters on as lists show of an id, also those that begin with it. Each list has
    an index of these ids, so a search reads no others.
    """
    start = text.strip()
    key = {"key": start}
    named = ParkedText.objects.filter(message_id=start.casefold())
    if len(start) >= SHORT_ID:
        # In any collation the ids that begin alike lie between the two.
        key = {"key__gte": start, "key__lt": start + LAST, "key__startswith": start}
        folded = start.casefold()
        named = ParkedText.objects.filter(message_id__gte=folded, message_id__lt=folded + LAST)
    of_topologies = Topology.objects.filter(broker__in=brokers)
    trips = ScheduledMessage.objects.filter(topology__in=of_topologies, **key)
    found = [
        Place(
            Link(row.key, "analytics:scheduled_message", (str(row.pk),)),
            f"{row.ending if row.left_at else 'scheduled'}, {row.broker.name}",
        )
        for row in trips.select_related("broker").order_by("-pk")[:MOST]
    ]
    rows = ParkedMessage.objects.filter(broker__in=brokers, pk__in=named.values("pk"))
    found += [
        Place(
            Link(str(row), "parked_message", (row.broker.slug, str(row.pk))),
            f"{row.get_state_display()}, {row.broker.name}",
        )
        for row in rows.select_related("broker").defer("properties").order_by("-pk")[:MOST]
    ]
    return found
