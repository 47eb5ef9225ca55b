"""What every diagram writes SVG with: escaped texts, numbers, live values, signs of a state."""

from __future__ import annotations

from html import escape
from math import log10

from topology.content.text import visible
from topology.graph.geometry import Point

BAR_TOP = 1_000_000


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


def bar(key: str, place: str, width: float, messages: int | None, limit: int | None) -> str:
    """A bar that follows the cell `key`; `place` holds its x, y, height and rx."""
    share = bar_share(messages, limit)
    full = f' data-full="{limit}"' if limit else ""
    return (
        f'<rect class="bar" {place} width="{n(width)}"/>'
        f'<rect class="bar-fill" {place} width="{n(width * share)}" data-width="{n(width)}"'
        f' data-bar="{attribute(key)}"{full}/>'
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


def live(key: str, shown: str) -> str:
    return f'<tspan data-live="{attribute(key)}">{content(shown)}</tspan>'


def text(name: str, x: float, y: float, inner: str) -> str:
    return f'<text class="{name}" x="{n(x)}" y="{n(y)}">{inner}</text>'


def p(point: Point) -> str:
    return f"{n(point[0])} {n(point[1])}"


def n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
