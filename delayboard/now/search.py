"""Where a text leads: pages, actions, brokers, topologies, queues and groups with these words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from delayboard.dead_letters.parked import groups
from delayboard.now.navigation import PAGES
from delayboard.now.problems import Link
from topology import latest
from topology.models import Broker, State, Topology
from topology.patterns.table import PATTERNS
from topology.redaction import Redaction

# Of each kind; a longer text finds the others.
MOST = 8
LONGEST_TEXT = 200


@dataclass(frozen=True)
class Place:
    """`note` distinguishes it from others of this name."""

    link: Link
    note: str = ""


@dataclass(frozen=True)
class Rights:
    """What of the site a user may open beside the pages of brokers."""

    may_operate: bool = False
    may_administer: bool = False
    may_audit: bool = False


def find_places(
    text: str, brokers: Sequence[Broker], rules: Mapping[int, Redaction], rights: Rights
) -> list[tuple[str, list[Place]]]:
    """Kind -> the first MOST places; without a text the pages and actions."""
    words = text.casefold().split()
    kinds = {
        "Pages": _fitting(words, _pages(rights)),
        "Actions": _fitting(words, _actions(brokers, rights)),
    }
    if words:
        kinds["Brokers"] = _fitting(words, _brokers(brokers))
        kinds["Topologies"] = _fitting(words, _topologies(brokers))
        kinds["Actions of topologies"] = _fitting(words, _topology_actions(brokers, rights))
        kinds["Queues"] = _fitting(words, _queues(brokers))
        kinds["Groups of dead letters"] = _groups(text, brokers, rules)
    return [(kind, places) for kind, places in kinds.items() if places]


def _fitting(words: Sequence[str], places: Iterable[Place]) -> list[Place]:
    """Those whose label has every word; what begins with the first word comes first."""
    found = [one for one in places if all(word in one.link.label.casefold() for word in words)]
    start = words[0] if words else ""
    found.sort(key=lambda one: not one.link.label.casefold().startswith(start))
    return found[:MOST] if words else found


def _pages(rights: Rights) -> Iterator[Place]:
    for page in PAGES:
        yield Place(Link(page.label, page.url_name))
    yield Place(Link("Brokers", "topology:brokers"))
    yield Place(Link("Changes of scheduled messages", "scheduled_changes"))
    yield Place(Link("Data retention", "retention"))
    if rights.may_audit:
        yield Place(Link("Audit", "topology:audit"))


def _actions(brokers: Iterable[Broker], rights: Rights) -> Iterator[Place]:
    if rights.may_operate:
        yield Place(Link("Publish message", "publish"))
        yield Place(Link("Add topology", "topology:topologies", fragment="patterns"))
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


def _topology_actions(brokers: Sequence[Broker], rights: Rights) -> Iterator[Place]:
    """Of applied topologies, for a text that names one."""
    rows = Topology.objects.filter(broker__in=brokers, state=State.APPLIED)
    for row in rows.select_related("broker"):
        query = {"topology": row.slug}
        note = row.broker.name
        if rights.may_operate:
            yield Place(Link(f"Publish through {row.name}", "publish", query=query), note)
            edit = Link(f"Edit parameters of {row.name}", "topology:topology_edit", (row.slug,))
            yield Place(edit, note)
        waiting = f"View waiting messages of {row.name}"
        yield Place(Link(waiting, "analytics:scheduled", query=query), note)


def _brokers(brokers: Iterable[Broker]) -> Iterator[Place]:
    for broker in brokers:
        yield Place(Link(broker.name, "topology:broker", (broker.slug,)), broker.environment)


def _topologies(brokers: Sequence[Broker]) -> Iterator[Place]:
    rows = Topology.objects.filter(broker__in=brokers).exclude(state=State.DELETED)
    for row in rows.select_related("broker"):
        title = PATTERNS[row.kind].EXPLANATION.title
        note = f"{title}, {row.broker.name}"
        yield Place(Link(row.name, "topology:topology", (row.slug,)), note)


def _queues(brokers: Iterable[Broker]) -> Iterator[Place]:
    """From the snapshots that this process has: a search never waits for a broker."""
    for broker in brokers:
        known = latest.latest(broker.pk)
        if known is None or known.snapshot is None:
            continue
        for name in sorted(queue.name for queue in known.snapshot.definitions.queues):
            link = Link(name, "dead_letter_queue", (broker.slug,), {"name": name})
            yield Place(link, broker.name)


def _groups(text: str, brokers: Iterable[Broker], rules: Mapping[int, Redaction]) -> list[Place]:
    """As the rules of each broker let them be seen."""
    found: list[Place] = []
    for broker in brokers:
        if len(found) == MOST:
            break
        page = groups.page(broker, groups.Asked(text=text), rules[broker.pk])
        for group in page.groups[: MOST - len(found)]:
            link = Link(str(group), "message_group", (broker.slug, str(group.pk)))
            found.append(Place(link, broker.name))
    return found
