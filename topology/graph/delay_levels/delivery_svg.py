"""The foot of a ladder as SVG: the delivery exchange and where it hands messages to."""

from __future__ import annotations

from topology.graph.delay_levels.diagram import NOWHERE, Destination, Ladder
from topology.graph.layout.geometry import shorten, visible
from topology.graph.svg_elements import attribute, content, live, n, signs, text

WIDTH = 716.0
LEFT, BOX_WIDTH, BUS, ENDS = 14.0, 250.0, 284.0, 306.0
HALF_BOX = 20.0
PITCH, HEIGHT = 23.0, 19.0
MOST_ENDS = 5
BOX_CELLS, END_CELLS = 30, 40
TROUBLE = {"missing": 0, NOWHERE: 0, "down": 0, "full": 1, "no_consumer": 1}


def destinations_height(ladder: Ladder) -> float:
    return max(44.0, PITCH * _rows(ladder) + 4)


def draw_destinations(own: str, ladder: Ladder, top: float) -> str:
    """The delivery exchange, whose box ends HALF_BOX above and below the middle, and its ends."""
    middle = top + destinations_height(ladder) / 2
    right, centre = LEFT + BOX_WIDTH, LEFT + BOX_WIDTH / 2
    state = ' data-state="missing"' if ladder.delivery_missing else ""
    missing = " node-missing" if ladder.delivery_missing else ""
    corners = (
        f"M{n(LEFT)} {n(middle)}l12 -20H{n(right - 12)}L{n(right)} {n(middle)}"
        f"l-12 20H{n(LEFT + 12)}z"
    )
    box = (
        f'<g class="node node-exchange delivery{missing}"{state}>'
        f"<title>{content(f'Exchange {ladder.delivery}: routes by destination')}</title>"
        f'<path class="shape" d="{corners}"/>'
        f"{text('name', centre, middle - 2, _short(ladder.delivery, BOX_CELLS))}"
        f"{text('small', centre, middle + 12, 'missing' if missing else 'delivery')}"
        f"{signs(right - 24, middle - HALF_BOX)}</g>"
    )
    return box + _ends(own, ladder, top, right, middle)


def _ends(own: str, ladder: Ladder, top: float, left: float, middle: float) -> str:
    if not ladder.destinations:
        words = (
            "No destination is bound. RabbitMQ delivers nothing."
            if ladder.is_seen and not ladder.is_absent
            else "Delayboard binds a destination before the first message."
        )
        return text("small", left + 14, middle + 4, words)
    shown, more = _choose_shown(ladder)
    rows = [top + PITCH * (place + 0.5) + 2 for place in range(_rows(ladder))]
    offset = middle - (rows[0] + rows[-1]) / 2
    rows = [y + offset for y in rows]
    lines = f"M{n(left)} {n(middle)}H{n(BUS)}"
    if len(rows) > 1:
        lines += f"M{n(BUS)} {n(rows[0])}V{n(rows[-1])}"
    tips = "".join(
        f'<path class="edge step" d="M{n(BUS)} {n(y)}H{n(ENDS - 8)}"'
        f' marker-end="url(#{own}-binding)"/>'
        for y in rows
    )
    drawn = [_end(end, y) for end, y in zip(shown, rows, strict=False)]
    if more:
        drawn.append(text("small", ENDS + 8, rows[-1] + 4, f"and {more} more, see the table"))
    return f'<path class="edge step" d="{lines}"/>{tips}{"".join(drawn)}'


def _choose_shown(ladder: Ladder) -> tuple[list[Destination], int]:
    """Destinations with problems first; one row counts those that do not fit."""
    ends = sorted(ladder.destinations, key=lambda end: TROUBLE.get(end.mark, 2))
    if len(ends) <= MOST_ENDS:
        return ends, 0
    return ends[: MOST_ENDS - 1], len(ends) - MOST_ENDS + 1


def _end(end: Destination, y: float) -> str:
    top, bottom, right = y - HEIGHT / 2, y + HEIGHT / 2, WIDTH - 4
    key = f' data-mark="{attribute(end.id)}"' if end.is_live else ""
    state = f' data-state="{end.mark}"' if end.mark else ""
    if end.kind == "queue":
        shape = (
            f'<rect class="shape" x="{n(ENDS)}" y="{n(top)}" width="{n(right - ENDS)}"'
            f' height="{n(HEIGHT)}" rx="6"/>'
        )
    else:
        shape = (
            f'<path class="shape" d="M{n(ENDS)} {n(y)}L{n(ENDS + 8)} {n(top)}H{n(right - 8)}'
            f'L{n(right)} {n(y)}L{n(right - 8)} {n(bottom)}H{n(ENDS + 8)}z"/>'
        )
    words = f"{end.kind.capitalize()} {end.name}, bound by {end.key}. {end.words}".strip()
    tail, cells = "", END_CELLS
    if end.missing or end.mark == NOWHERE:
        cells -= len(end.words)
        tail = text("fault end", right - 30, y + 4, end.words)
    elif end.numbers is not None:
        tail = text("depth", right - 30, y + 4, live(end.messages.key, end.messages.text))
    missing = " node-missing" if end.missing else ""
    return (
        f'<g class="node end-{end.kind}{missing}"{key}{state}><title>{content(words)}</title>'
        f"{shape}{text('name', ENDS + 14, y + 4, _short(end.name, cells))}{tail}"
        f"{signs(right - 14, y)}</g>"
    )


def _short(name: str, limit: int) -> str:
    return content(shorten(visible(name), limit)) or "(no name)"


def _rows(ladder: Ladder) -> int:
    return max(1, min(len(ladder.destinations), MOST_ENDS))
