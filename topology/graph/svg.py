"""A layout as SVG: classes only, every name escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import log10

from topology.content.text import count_text, visible
from topology.delays import format_delay
from topology.graph.build import sentence
from topology.graph.geometry import (
    LINE_HEIGHT,
    PADDING,
    SMALL_CELL,
    Box,
    Layout,
    Line,
    Point,
    label_width,
)
from topology.graph.live_values import MARK_WORDS, rate_text

BAR_TOP = 1_000_000
ARROWS = ("binding", "dead-letter", "alternate", "forwarder")
# Paths from the middle of a sign: a clock, and an arrow that comes round again.
CLOCK = "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0m5 -3v3h2.5"
AGAIN = "m4.2 -2.6a5 5 0 1 0 .7 3.4m-3.6 -3.4h3.2v-3.2"
LEAST_WIDTHS = (1200, 960, 720, 480)
SHRINKS_TO = 0.8


def draw(layout: Layout, *, title: str, description: str = "", id: str = "graph") -> str:
    """The diagram. `id` must be unique on its page; markers and texts are named after it."""
    described = description or " ".join(sentence(box.node) for box in layout.boxes[:40])
    return draw_around(layout, map(_node, layout.boxes), title=title, description=described, id=id)


def draw_around(
    layout: Layout,
    boxes: Iterable[str],
    *,
    title: str,
    description: str,
    id: str,
    classes: str = "graph",
    role: str = "img",
) -> str:
    """Drawn boxes with the arrows of their layout; `role` is "group" with links in them."""
    own, width, height = attribute(id), n(layout.width), n(layout.height)
    # Keeps a diagram from shrinking until nobody can read it.
    least = next((wide for wide in LEAST_WIDTHS if layout.width * SHRINKS_TO >= wide), 0)
    classes += f" least-{least}" if least else ""
    return "".join(
        [
            f'<svg class="{classes}" viewBox="0 0 {width} {height}" width="{width}"'
            f' height="{height}" role="{role}" aria-labelledby="{own}-title {own}-text"'
            ' xmlns="http://www.w3.org/2000/svg">',
            f'<title id="{own}-title">{content(title)}</title>'
            f'<desc id="{own}-text">{content(description)}</desc>',
            f"<defs>{''.join(marker(own, kind) for kind in ARROWS)}</defs>",
            *(_edge(own, line) for line in layout.lines),
            *boxes,
            *(_edge_label(line) for line in layout.lines if line.label),
            "</svg>",
        ]
    )


def _edge(own: str, line: Line) -> str:
    """The arrow without its label; the marker begins at the last point of the curve."""
    start, *rest = line.points
    curve = " ".join(p(point) for point in rest)
    keys = f" ({', '.join(line.edge.keys)})" if line.edge.keys else ""
    return (
        f'<path class="edge edge-{line.edge.kind}" d="M{p(start)}C{curve}" fill="none"'
        f' marker-end="url(#{own}-{line.edge.kind})">'
        f"<title>{content(line.edge.what + keys)}</title></path>"
    )


def _edge_label(line: Line) -> str:
    width = label_width(line.label)
    x, y = line.label_at
    return (
        f'<g class="edge-label edge-label-{line.edge.kind}">'
        f"<title>{content(line.edge.label)}</title>"
        f'<rect x="{n(x - width / 2)}" y="{n(y - 8)}" width="{n(width)}" height="16" rx="4"/>'
        f'<text x="{n(x)}" y="{n(y + 4)}" text-anchor="middle">{content(line.label)}</text></g>'
    )


def _node(box: Box) -> str:
    node = box.node
    classes = ["node", f"node-{node.kind}"]
    classes += ["node-missing"] if node.missing else []
    classes += ["node-broken"] if node.broken else []
    state = attribute(node.mark)
    mark = f' data-key="{attribute(node.id)}" data-state="{state}"' if node.mark else ""
    words = f" Now: {MARK_WORDS[node.mark]}." if node.mark in MARK_WORDS else ""
    words += f" {node.broken.capitalize()}." if node.broken else ""
    return (
        f'<g class="{" ".join(classes)}"{mark}>'
        f"<title>{content(sentence(node) + words)}</title>"
        f"{_shape(box)}{_texts(box)}"
        f"{_label('step', node.badge, box.left + 8, box.top)}"
        f"{_label('broken', node.broken, box.left + 8, box.top + box.height + 4)}</g>"
    )


def _label(kind: str, words: str, left: float, middle: float) -> str:
    """Words in a filled field on a border; `middle` is the baseline of the words."""
    if not words:
        return ""
    width = len(words) * (SMALL_CELL + 0.5) + 14
    return (
        f'<g class="{kind}"><rect x="{n(left)}" y="{n(middle - 12)}" width="{n(width)}" height="16"'
        f' rx="8"/><text x="{n(left + 7)}" y="{n(middle)}">{content(words)}</text></g>'
    )


def _shape(box: Box) -> str:
    if box.node.kind == "exchange":
        nose, top, bottom = 14, box.top, box.top + box.height
        left, right = box.left, box.left + box.width
        corners: list[Point] = [(left, box.y), (left + nose, top), (right - nose, top)]
        corners += [(right, box.y), (right - nose, bottom), (left + nose, bottom)]
        return f'<polygon class="shape" points="{" ".join(p(corner) for corner in corners)}"/>'
    return (
        f'<rect class="shape" x="{n(box.left)}" y="{n(box.top)}" width="{n(box.width)}"'
        f' height="{n(box.height)}" rx="9"/>'
    )


def _texts(box: Box) -> str:
    is_exchange = box.node.kind == "exchange"
    x = box.x if is_exchange else box.left + PADDING
    y = box.top + LINE_HEIGHT + 3
    parts = []
    for line in box.lines:
        parts.append(text("name", x, y, content(line)))
        y += LINE_HEIGHT
    if box.node.missing:
        return "".join([*parts, _signs(box), text("small", x, y, "missing")])
    y += 1
    if is_exchange:
        known = box.node.rate is not None
        rate = [rate_text(box.node.rate)] if known else []
        words = " · ".join([content(box.node.type or "exchange"), *rate])
        return "".join([*parts, text("small", x, y, words)])
    parts.append(text("small", x, y, box.node.type))
    if box.node.ttl is not None:
        words = format_delay(box.node.ttl)
        parts.append(_pill(box, y, words, f"message TTL {words}", CLOCK))
    elif box.node.retry is not None:
        parts.append(_pill(box, y, box.node.retry.badge, box.node.retry.sentence, AGAIN))
    if box.node.numbers is not None:
        parts.append(_numbers(box, y + 24))
    return "".join(parts)


def _numbers(box: Box, y: float) -> str:
    """Depth, rates, consumers and the bar; y is the baseline of the depth."""
    node, x = box.node, box.left + PADDING
    numbers = node.numbers
    assert numbers is not None
    depth = f'{count_text(numbers.messages)}<tspan class="unit" dx="5">messages</tspan>'
    flow = f"{rate_text(numbers.publish_rate)} in · {rate_text(numbers.deliver_rate)} out"
    place = f'x="{n(x)}" y="{n(y + 2 * LINE_HEIGHT + 7)}" height="4" rx="2"'
    width = box.width - 2 * PADDING
    return (
        text("depth", x, y, depth)
        + _signs(box)
        + text("small", x, y + LINE_HEIGHT, flow)
        + text("small", x, y + 2 * LINE_HEIGHT, f"consumers {count_text(numbers.consumers)}")
        + bar(place, width, bar_share(numbers.messages, node.limit))
    )


def _signs(box: Box) -> str:
    """Draw the signs on the upper border."""
    return signs(box.left + box.width - (28 if box.node.kind == "exchange" else 18), box.top)


def _pill(box: Box, y: float, words: str, sentence: str, hands: str) -> str:
    """A badge with a round sign; y is the baseline of its line."""
    width = len(words) * (SMALL_CELL + 1) + 28
    left = box.left + box.width - width - 6
    face = left + 11
    return (
        f'<g class="badge"><title>{content(sentence)}</title>'
        f'<rect x="{n(left)}" y="{n(y - 11.5)}" width="{n(width)}" height="16" rx="8"/>'
        f'<path d="M{n(face)} {n(y - 4)}{hands}"/>'
        f'<text x="{n(face + 9)}" y="{n(y)}">{words}</text></g>'
    )


def content(text: str) -> str:
    """A text between tags."""
    return escape(visible(text), quote=False)


def attribute(text: str) -> str:
    """A text inside double quotes, kept exactly: control characters as references."""
    return "".join(f"&#{ord(c)};" if c < " " else c for c in escape(text))


def bar_share(messages: int | None, limit: int | None) -> float:
    """How full a queue's bar is, 0 to 1: of its limit, else on a log scale up to a million."""
    if not messages:
        return 0.0
    share = messages / limit if limit else log10(messages + 1) / log10(BAR_TOP)
    return min(max(share, 0.02), 1.0)


def bar(place: str, width: float, share: float) -> str:
    """A bar filled up to `share`; `place` holds its x, y, height and rx."""
    return (
        f'<rect class="bar" {place} width="{n(width)}"/>'
        f'<rect class="bar-fill" {place} width="{n(width * share)}"/>'
    )


def signs(x: float, y: float) -> str:
    """One sign for each kind of state, centred at x and y; CSS shows the one in force."""
    shapes = {
        "warn": f"M{n(x)} {n(y - 6)}l6.5 11h-13z",
        "error": f"M{n(x - 5)} {n(y - 5)}h10v10h-10z",
        "wait": f"M{n(x - 4)} {n(y - 5)}h8l-8 10h8z",
    }
    return "".join(f'<path class="sign sign-{name}" d="{d}"/>' for name, d in shapes.items())


def marker(own: str, kind: str) -> str:
    """The tip of a kind of arrow, which begins at the end of its line."""
    return (
        f'<marker id="{own}-{kind}" class="tip tip-{kind}" viewBox="0 0 8 8" refX="0" refY="4"'
        ' markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker>'
    )


def text(name: str, x: float, y: float, inner: str) -> str:
    return f'<text class="{name}" x="{n(x)}" y="{n(y)}">{inner}</text>'


def p(point: Point) -> str:
    return f"{n(point[0])} {n(point[1])}"


def n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
