"""A layout as SVG: classes only, every name escaped, live numbers under their keys."""

from __future__ import annotations

from html import escape
from math import log10

from topology.delays import format_delay
from topology.graph.build import Node, sentence
from topology.graph.cells import MARK_WORDS, queue_cells, rate_text
from topology.graph.geometry import (
    LINE_HEIGHT,
    PADDING,
    SMALL_CELL,
    Box,
    Layout,
    Line,
    Point,
    label_width,
    visible,
)

ARROWS = ("binding", "dead-letter", "alternate")
BAR_TOP = 1_000_000
LEAST_WIDTHS = (1200, 960, 720, 480)
SHRINKS_TO = 0.8


def draw(layout: Layout, *, title: str, description: str = "", id: str = "graph") -> str:
    """The picture. `id` must be unique on its page; markers and texts are named after it."""
    size = f'viewBox="0 0 {_n(layout.width)} {_n(layout.height)}" width="{_n(layout.width)}"'
    least = next((n for n in LEAST_WIDTHS if layout.width * SHRINKS_TO >= n), 0)
    readable = f" least-{least}" if least else ""
    own = attribute(id)
    return "".join(
        [
            f'<svg class="graph{readable}" {size} height="{_n(layout.height)}" role="img"',
            f' aria-labelledby="{own}-title {own}-text" xmlns="http://www.w3.org/2000/svg">',
            f'<title id="{own}-title">{content(title)}</title>',
            f'<desc id="{own}-text">{content(description or _described(layout))}</desc>',
            f"<defs>{''.join(_marker(own, kind) for kind in ARROWS)}</defs>",
            *(_way(own, line) for line in layout.lines),
            *(_node(box) for box in layout.boxes),
            *(_label(line) for line in layout.lines if line.label),
            "</svg>",
        ]
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


def _described(layout: Layout) -> str:
    return " ".join(sentence(box.node) for box in layout.boxes[:40])


def _marker(own: str, kind: str) -> str:
    return (
        f'<marker id="{own}-{kind}" class="tip tip-{kind}" viewBox="0 0 8 8" refX="0" refY="4"'
        ' markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker>'
    )


def _way(own: str, line: Line) -> str:
    """The arrow without its label; the marker's foot stands on the last point of the curve."""
    start, *rest = line.points
    curve = " ".join(_p(point) for point in rest)
    keys = f" ({', '.join(line.edge.keys)})" if line.edge.keys else ""
    return (
        f'<path class="edge edge-{line.edge.kind}" d="M{_p(start)}C{curve}" fill="none"'
        f' marker-end="url(#{own}-{line.edge.kind})">'
        f"<title>{content(line.edge.what + keys)}</title></path>"
    )


def _label(line: Line) -> str:
    width = label_width(line.label)
    x, y = line.label_at
    return (
        f'<g class="edge-label edge-label-{line.edge.kind}">'
        f"<title>{content(line.edge.label)}</title>"
        f'<rect x="{_n(x - width / 2)}" y="{_n(y - 8)}" width="{_n(width)}" height="16" rx="4"/>'
        f'<text x="{_n(x)}" y="{_n(y + 4)}" text-anchor="middle">{content(line.label)}</text></g>'
    )


def _node(box: Box) -> str:
    node = box.node
    classes = ["node", f"node-{node.kind}"]
    classes += [f"node-{flag}" for flag in ("missing", "foreign") if getattr(node, flag)]
    key, state = attribute(node.id), attribute(node.mark)
    mark = f' data-mark="{key}" data-state="{state}"' if node.mark else ""
    words = f" Now: {MARK_WORDS[node.mark]}." if node.mark in MARK_WORDS else ""
    return (
        f'<g class="{" ".join(classes)}"{mark}>'
        f"<title>{content(sentence(node) + words)}</title>{_shape(box)}{_texts(box)}</g>"
    )


def _shape(box: Box) -> str:
    if box.node.kind == "exchange":
        nose, top, bottom = 14, box.top, box.top + box.height
        left, right = box.left, box.left + box.width
        corners: list[Point] = [(left, box.y), (left + nose, top), (right - nose, top)]
        corners += [(right, box.y), (right - nose, bottom), (left + nose, bottom)]
        return f'<polygon class="shape" points="{" ".join(_p(corner) for corner in corners)}"/>'
    return (
        f'<rect class="shape" x="{_n(box.left)}" y="{_n(box.top)}" width="{_n(box.width)}"'
        f' height="{_n(box.height)}" rx="9"/>'
    )


def _texts(box: Box) -> str:
    is_exchange = box.node.kind == "exchange"
    x = box.x if is_exchange else box.left + PADDING
    y = box.top + LINE_HEIGHT + 3
    parts = []
    for line in box.lines:
        parts.append(_text("name", x, y, content(line)))
        y += LINE_HEIGHT
    if box.node.missing:
        return "".join([*parts, _signs(box), _text("small", x, y, "missing")])
    y += 1
    parts.append(_text("small", x, y, _exchange_line(box.node) if is_exchange else box.node.type))
    if is_exchange:
        return "".join(parts)
    if box.node.ttl is not None:
        parts.append(_clock(box, y, format_delay(box.node.ttl)))
    if box.node.numbers is not None:
        parts.append(_numbers(box, y + 24))
    return "".join(parts)


def _exchange_line(node: Node) -> str:
    rate = f"{_live(f'{node.id}/rate', rate_text(node.rate))}" if node.rate is not None else ""
    return " · ".join(part for part in (content(node.type or "exchange"), rate) if part)


def _numbers(box: Box, y: float) -> str:
    """Depth, rates, consumers and the bar; y is the baseline of the depth."""
    node, x = box.node, box.left + PADDING
    if node.numbers is None:
        return ""
    cells = queue_cells(node.name, node.numbers)
    live = {key.rpartition("/")[2]: _live(key, text) for key, text in cells.items()}
    depth = f'{live["messages"]}<tspan class="unit" dx="5">messages</tspan>'
    flow = f"{live['publish_rate']} in · {live['deliver_rate']} out"
    width = box.width - 2 * PADDING
    share = bar_share(node.numbers.messages, node.limit)
    bar = f'x="{_n(x)}" y="{_n(y + 2 * LINE_HEIGHT + 7)}" height="4" rx="2"'
    limit = f' data-full="{node.limit}"' if node.limit else ""
    return (
        _text("depth", x, y, depth)
        + _signs(box)
        + _text("small", x, y + LINE_HEIGHT, flow)
        + _text("small", x, y + 2 * LINE_HEIGHT, f"consumers {live['consumers']}")
        + f'<rect class="bar" {bar} width="{_n(width)}"/>'
        + f'<rect class="bar-fill" {bar} width="{_n(width * share)}" data-width="{_n(width)}"'
        + f' data-bar="{attribute(node.id)}/messages"{limit}/>'
    )


def _signs(box: Box) -> str:
    """One sign for each kind of state on the upper border; CSS shows the one in force."""
    x, y = box.left + box.width - (28 if box.node.kind == "exchange" else 18), box.top
    signs = {
        "warn": f"M{_n(x)} {_n(y - 6)}l6.5 11h-13z",
        "error": f"M{_n(x - 5)} {_n(y - 5)}h10v10h-10z",
        "wait": f"M{_n(x - 4)} {_n(y - 5)}h8l-8 10h8z",
    }
    return "".join(f'<path class="sign sign-{name}" d="{d}"/>' for name, d in signs.items())


def _clock(box: Box, y: float, text: str) -> str:
    """A badge with a clock face; y is the baseline of its line."""
    width = len(text) * (SMALL_CELL + 1) + 28
    left = box.left + box.width - width - 6
    face = left + 11
    return (
        f'<g class="badge"><title>messages die after {text}</title>'
        f'<rect x="{_n(left)}" y="{_n(y - 11.5)}" width="{_n(width)}" height="16" rx="8"/>'
        f'<circle cx="{_n(face)}" cy="{_n(y - 4)}" r="5"/>'
        f'<path d="M{_n(face)} {_n(y - 7)}v3h2.5"/>'
        f'<text x="{_n(face + 9)}" y="{_n(y)}">{text}</text></g>'
    )


def _live(key: str, text: str) -> str:
    return f'<tspan data-live="{attribute(key)}">{content(text)}</tspan>'


def _text(name: str, x: float, y: float, inner: str) -> str:
    return f'<text class="{name}" x="{_n(x)}" y="{_n(y)}">{inner}</text>'


def _p(point: Point) -> str:
    return f"{_n(point[0])} {_n(point[1])}"


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
