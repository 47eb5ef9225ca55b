"""A whole vhost as boxes: one for each topology, one for each kind of what belongs to none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from topology.content.text import count_of, count_text
from topology.graph.build import Graph, Node
from topology.graph.dot import arrange
from topology.graph.edges import Edge
from topology.graph.geometry import LINE_HEIGHT, PADDING, Box, Layout, arrange_rows
from topology.graph.live_values import MARK_WORDS
from topology.graph.svg import attribute, content, draw_around, n, signs, text
from topology.graph.vhost_survey import EXCHANGES, MISSING, QUEUES, Group, Survey, name_of
from topology.snapshot import QueueNumbers, Snapshot

Shape: TypeAlias = Literal["group", "exchange", "queue", "missing"]

# States in the order of their weight: a box has the first that one of its queues is in.
WORST = (
    *("down", "full", "stuck", "taken", "missing", "no_consumer", "growing"),
    *("waiting", "busy", "unknown", "empty"),
)
TROUBLES = frozenset(WORST[:7])
REST: Mapping[str, tuple[str, Shape]] = {
    QUEUES: ("Other queues", "queue"),
    EXCHANGES: ("Other exchanges", "exchange"),
    MISSING: ("Missing objects", "missing"),
}
MOST_LINKED = 40
SHORT = {
    "down": "not running",
    "full": "full",
    "stuck": "stuck",
    "taken": "consumed early",
    "missing": "incomplete",
    "no_consumer": "no consumer",
}
WITHOUT_ARROWS = (
    f"Above {MOST_LINKED} boxes the diagram omits arrows. The table lists the connections."
)


@dataclass(frozen=True)
class Card:
    """A box of the diagram and a row of its table.

    `mark` is one of WORST, "" without a queue; `troubled` counts the queues with problems and
    `matches` those that match the search. `unit` is what `messages` counts.
    """

    key: str
    title: str
    kind: str
    shape: Shape
    exchanges: int = 0
    queues: int = 0
    messages: int | None = None
    unit: str = "messages"
    mark: str = ""
    troubled: int = 0
    trouble: tuple[str, ...] = ()
    matches: int | None = None
    href: str = ""

    @property
    def is_many(self) -> bool:
        """Whether it represents a group or a kind instead of one object."""
        return "/" not in self.key or self.shape == "group"

    @property
    def state(self) -> str:
        """The mark in words, with the number of queues where it is some of many."""
        is_half = self.shape == "group" and self.mark == "missing"
        words = "incomplete" if is_half else MARK_WORDS.get(self.mark, "")
        if self.mark in TROUBLES and self.queues > 1 and self.troubled:
            return f"{words} ({self.troubled} of {self.queues} queues)"
        return words


@dataclass(frozen=True)
class Overview:
    """The cards that are drawn, the worst first, of `total`; edges are between their keys."""

    cards: tuple[Card, ...]
    edges: tuple[Edge, ...]
    total: int

    def list_targets(self) -> Mapping[str, Sequence[str]]:
        """Key of a card -> titles of the cards to which it leads."""
        titles = {card.key: card.title for card in self.cards}
        found: dict[str, set[str]] = {}
        for edge in self.edges:
            found.setdefault(edge.source, set()).add(titles[edge.target])
        return {key: sorted(names) for key, names in found.items()}


def overview(seen: Survey, *, search: str = "", most: int) -> Overview:
    """Every group and what is left over; with a search those that hold a name that fits."""
    cards = [_group_card(group, seen, search) for group in seen.groups]
    cards += [_rest_card(key, members, seen, search) for key, members in seen.rest.items()]
    kept = [card for card in cards if card.matches != 0 and card.exchanges + card.queues]
    drawn = sorted(kept, key=_urgency)[:most]
    keys = {card.key for card in drawn}
    return Overview(tuple(drawn), tuple(_edges_between(seen.arrows, seen.owners, keys)), len(kept))


def members(seen: Survey, ids: Collection[str], *, search: str = "", most: int) -> Overview:
    """A card for each of these exchanges and queues that fits the search."""
    kept = [_make_object_card(member, seen) for member in ids if _is_match(name_of(member), search)]
    return Overview(tuple(sorted(kept, key=_urgency)[:most]), (), len(kept))


def _group_card(group: Group, seen: Survey, search: str) -> Card:
    named = sum(_is_match(name_of(member), search) for member in group.members)
    matches = named + _is_match(group.title, search) if search else None
    card = Card(group.key, group.title, group.kind, "group", unit="waiting", matches=matches)
    card = replace(card, messages=group.waiting, trouble=group.trouble)
    return _count_members(card, seen.own(group), seen.marks, is_missing=bool(group.trouble))


def _rest_card(key: str, members: Collection[str], seen: Survey, search: str) -> Card:
    title, shape = REST[key]
    fitting = [member for member in members if _is_match(name_of(member), search)]
    depths = [_depth(member, seen.snapshot) for member in fitting if member.startswith("queue/")]
    known = [depth for depth in depths if depth is not None]
    kind = "missing" if key == MISSING else "in no recognized topology"
    has_depth = key == QUEUES and bool(known)
    card = Card(
        key, title, kind, shape, messages=sum(known) if has_depth else None, matches=len(fitting)
    )
    return _count_members(card, fitting, seen.marks, is_missing=key == MISSING)


def _make_object_card(member: str, seen: Survey) -> Card:
    kind, _, name = member.partition("/")
    queue = seen.definitions.queue(name) if kind == "queue" else None
    exchange = seen.definitions.exchange(name) if kind == "exchange" else None
    if queue is not None:
        depth = _depth(member, seen.snapshot)
        mark = seen.marks.get(member, "")
        return Card(member, name, queue.type, "queue", queues=1, messages=depth, mark=mark)
    if exchange is not None:
        return Card(member, name, exchange.type, "exchange", exchanges=1)
    return Card(member, name, f"{kind}, missing", "missing", mark="missing")


def _count_members(
    card: Card, ids: Collection[str], marks: Mapping[str, str], *, is_missing: bool
) -> Card:
    queues = [member for member in ids if member.startswith("queue/")]
    found = Counter(marks[member] for member in queues if member in marks)
    worst = next((one for one in WORST if found[one] or (is_missing and one == "missing")), "")
    card = replace(card, exchanges=len(ids) - len(queues), queues=len(queues))
    return replace(card, mark=worst, troubled=found[worst])


def _edges_between(
    arrows: Iterable[Edge], owners: Mapping[str, str], keys: Collection[str]
) -> Iterable[Edge]:
    """One edge for all arrows of a kind from one card to another."""
    together: dict[tuple[str, str, str], list[Edge]] = {}
    for arrow in arrows:
        source, target = owners.get(arrow.source, ""), owners.get(arrow.target, "")
        if source != target and source in keys and target in keys:
            together.setdefault((source, target, arrow.kind), []).append(arrow)
    for (source, target, _), found in sorted(together.items()):
        first = found[0]
        number = len(found)
        label = f"{number} × {first.kind}" if number > 1 else first.label
        yield Edge(source, target, first.kind, first.what, first.keys, label)


def _depth(member: str, snapshot: Snapshot) -> int | None:
    return snapshot.numbers.get(name_of(member), QueueNumbers()).messages


def _urgency(card: Card) -> tuple[int, int, str]:
    rank = WORST.index(card.mark) if card.mark in TROUBLES else len(WORST)
    return rank, -(card.messages or 0), card.title


def _is_match(name: str, search: str) -> bool:
    return search.casefold() in name.casefold()


def arrange_cards(seen: Overview) -> Layout:
    """Linked cards as a graph and the others below it in rows; nodes have the cards' keys."""
    nodes = {card.key: _node(card) for card in seen.cards}
    if len(nodes) > MOST_LINKED:
        return replace(
            arrange_rows(list(nodes.values())), note=WITHOUT_ARROWS if seen.edges else ""
        )
    ends = {end for edge in seen.edges for end in (edge.source, edge.target)}
    linked = tuple(node for key, node in nodes.items() if key in ends)
    alone = [node for key, node in nodes.items() if key not in ends]
    if not linked:
        return arrange_rows(alone)
    above = arrange(Graph(linked, seen.edges))
    below = arrange_rows(alone, above.height) if alone else Layout(0.0, above.height, (), ())
    width = max(above.width, below.width)
    return replace(above, width=width, height=below.height, boxes=above.boxes + below.boxes)


def draw_cards(seen: Overview, layout: Layout, *, title: str, id: str) -> str:
    """The diagram; every card with an `href` is a link. `id` must be unique on its page."""
    cards = {card.key: card for card in seen.cards}
    drawn = (_card(box, cards[box.node.id]) for box in layout.boxes)
    texts = {"description": f"{len(cards)} boxes. The table below lists the same data."}
    look = {"classes": "graph vhost", "role": "group"}
    return draw_around(layout, drawn, title=title, id=id, **texts, **look)


def _node(card: Card) -> Node:
    """A box with the size of a queue with or without numbers."""
    is_tall = card.shape in ("group", "queue")
    numbers = QueueNumbers(card.messages) if is_tall else None
    small = (card.kind, describe_objects(card), SHORT.get(card.mark, ""))
    return Node(card.key, "queue", card.title, numbers=numbers, small=small)


def _card(box: Box, card: Card) -> str:
    drawn = (
        f'<g class="node node-{card.shape}" data-state="{attribute(card.mark)}">'
        f"<title>{content(sentence(card))}</title>"
        f'<rect class="shape" x="{n(box.left)}" y="{n(box.top)}" width="{n(box.width)}"'
        f' height="{n(box.height)}" rx="9"/>{"".join(_texts(box, card))}'
        f"{signs(box.left + box.width - 18, box.top)}</g>"
    )
    return f'<a href="{attribute(card.href)}">{drawn}</a>' if card.href else drawn


def _texts(box: Box, card: Card) -> list[str]:
    x, y = box.left + PADDING, box.top + LINE_HEIGHT + 3
    parts = []
    for line in box.lines:
        parts.append(text("name", x, y, content(line)))
        y += LINE_HEIGHT
    description = describe_objects(card)
    small = [card.kind, description] if card.shape == "group" else [description or card.kind]
    parts.append(text("small", x, y, content(small[0])))
    if box.node.numbers is None:
        return parts
    unit = f'<tspan class="unit" dx="5">{card.unit}</tspan>'
    parts.append(text("depth", x, y + 25, content(count_text(card.messages)) + unit))
    small = [*small[1:], SHORT.get(card.mark, "")]
    for place, words in enumerate(small):
        name = "small trouble" if words == SHORT.get(card.mark) else "small"
        parts.append(text(name, x, y + 25 + LINE_HEIGHT * (place + 1), content(words)))
    return parts


def describe_objects(card: Card) -> str:
    """How many of each kind; "" for a single object, whose kind is its label."""
    if not card.is_many:
        return ""
    numbers = ((card.exchanges, "exchange"), (card.queues, "queue"))
    return " · ".join(count_of(number, word) for number, word in numbers if number)


def sentence(card: Card) -> str:
    """All that is known about a card, for a tooltip and for screen readers."""
    words = [card.title, card.kind, describe_objects(card)]
    if card.messages is not None:
        words.append(f"{count_text(card.messages)} {card.unit}")
    words.append(card.state)
    return " ".join([", ".join(word for word in words if word) + ".", *card.trouble])
