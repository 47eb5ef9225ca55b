"""Cards in their places and as SVG: few with the arrows between them, many in rows without."""

from __future__ import annotations

from dataclasses import replace

from topology.content.text import count_of, count_text
from topology.graph.build import Graph, Node
from topology.graph.dot import arrange
from topology.graph.geometry import LINE_HEIGHT, PADDING, Box, Layout, arrange_rows
from topology.graph.svg import attribute, content, draw_around, n, signs, text
from topology.graph.vhost_cards import Card, Overview
from topology.snapshot import QueueNumbers

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
