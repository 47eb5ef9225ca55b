"""SVG without scripts: a figure as lines, bars and marks, and a small drawing of counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import pairwise
from typing import Any, TypeAlias

Point: TypeAlias = tuple[float, float]
# Pixels above the plot, and the height of the words below it.
TOP, BOTTOM = 8, 42
# Characters of the longest label of a row, and of the longest one for the narrow margin.
LONGEST_NAME, SHORT_LABEL = 32, 8
MOST_TICKS, FEWEST_TICKS = 12, 4
RADIUS = 3.5
# Lower end of a logarithmic axis, a little less than the shortest lateness that is drawn.
LOWEST = math.log10(0.4)
BAR_SHARE, HALF_BAR = 0.8, 8
LINE_WIDTH, LINE_HEIGHT = 120, 24


@dataclass(frozen=True)
class Axis:
    """Places of values from 0 to 1, and the labels beside them."""

    place: Callable[[Any], float]
    ticks: Sequence[tuple[float, str]]
    title: str = ""
    step: float = 0.0
    """The width of a category."""


def draw(figure: Mapping[str, Any], label: str) -> str:
    """The chart as HTML, as wide as its place: legend and SVG, whose colours are the page's.

    Every text in it is escaped, and no element has a style of its own, which a page's policy would
    refuse. Lengths across are in percent, those from the top in pixels.
    """
    traces, layout = figure["data"], figure["layout"]
    is_stacked = layout.get("barmode") == "stack"
    across = _axis(layout.get("xaxis", {}), [value for one in traces for value in one["x"]])
    heights = [value for one in traces for value in one["y"]]
    if is_stacked:
        sums = Counter[Any]()
        for one in traces:
            sums.update({x: y or 0 for x, y in zip(one["x"], one["y"], strict=True)})
        heights = list(sums.values())
    up = _axis(layout.get("yaxis", {}), heights)
    named = [one for one in traces if one.get("name")]
    height = layout["height"]
    bottom = height - BOTTOM
    is_reversed = layout.get("yaxis", {}).get("autorange") == "reversed"

    def at(x: float, y: float) -> Point:
        return 100 * x, TOP + (y if is_reversed else 1 - y) * (bottom - TOP)

    parts = [*_grid(across, up, at, bottom), *_events(layout, across, at)]
    lower: dict[Any, float] = {}
    for trace in traces:
        drawn = _bars if trace["type"] == "bar" else _marks
        parts += drawn(trace, across, up, at, lower if is_stacked else {})
    is_wide = any(len(text) > SHORT_LABEL for _, text in up.ticks)
    return (
        f'{_legend(up.title, named)}<svg class="drawn{" drawn-names" if is_wide else ""}" '
        f'width="100%" height="{height}" role="group" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _axis(own: Mapping[str, Any], values: Sequence[Any]) -> Axis:
    title = own.get("title", {}).get("text", "")
    # None is a gap.
    values = [one for one in values if one is not None]
    if not values:
        return Axis(lambda _: 0.0, ())
    if own.get("type") in ("category", "date") or any(isinstance(one, str) for one in values):
        return _categories(own, values, title)
    numbers = [float(value) for value in values]
    if own.get("type") == "log":
        low = max(math.floor(math.log10(min(numbers))), LOWEST)
        high = math.ceil(math.log10(max(numbers)))
        span = max(high - low, 1.0)
        ticks = [
            ((math.log10(value) - low) / span, text)
            for value, text in zip(own["tickvals"], own["ticktext"], strict=True)
        ]
        shown = [tick for tick in ticks if 0 <= tick[0] <= 1]
        return Axis(lambda value: (math.log10(value) - low) / span, shown, title)
    most = own["range"][1] if "range" in own else 1.05 * max(numbers)
    most = most or 1.0
    step = _step(most)
    is_share = own.get("tickformat", "").endswith("%")
    if not is_share and all(number.is_integer() for number in numbers):
        step = max(step, 1.0)
    marks = [number * step for number in range(int(most / step) + 1)]
    return Axis(
        lambda value: value / most,
        [(mark / most, f"{100 * mark:g} %" if is_share else f"{mark:,.10g}") for mark in marks],
        title,
    )


def _categories(own: Mapping[str, Any], values: Sequence[Any], title: str) -> Axis:
    names = list(dict.fromkeys(values))
    is_date = own.get("type") == "date"
    if is_date:
        names.sort()
    places = {name: (place + 0.5) / len(names) for place, name in enumerate(names)}
    every = math.ceil(len(names) / MOST_TICKS) if own.get("autorange") != "reversed" else 1
    ticks = [
        (places[name], f"{date.fromisoformat(name):%-d %b}" if is_date else _short(str(name)))
        for name in names[::every]
    ]
    return Axis(places.__getitem__, ticks, title, 1 / max(len(names), 1))


def _step(most: float) -> float:
    """A round step with at least FEWEST_TICKS of them up to `most`."""
    power = 10.0 ** math.floor(math.log10(most / FEWEST_TICKS))
    return max(
        (power * factor for factor in (1, 2, 2.5, 5) if power * factor * FEWEST_TICKS <= most),
        default=power,
    )


def _legend(title: str, named: Sequence[Mapping[str, Any]]) -> str:
    """What the vertical axis counts, and the names of the colours."""
    keys = [
        f'<span><svg class="key" width="10" height="10" aria-hidden="true">'
        f'<circle cx="5" cy="5" r="5" fill="{_colour(trace)}"/></svg> '
        f"{escape(_short(trace['name']))}</span>"
        for trace in named
    ]
    return f'<p class="legend"><span>{escape(title)}</span>{"".join(keys)}</p>'


def _grid(
    across: Axis, up: Axis, at: Callable[[float, float], Point], bottom: float
) -> Iterator[str]:
    for place, text in up.ticks:
        _, y = at(0, place)
        yield f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="0" dx="-8" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    for number, (place, text) in enumerate(across.ticks):
        x, _ = at(place, 0)
        # On a phone there is room for every second label.
        kind = ' class="second"' if number % 2 and len(across.ticks) > MOST_TICKS / 2 else ""
        yield f'<text{kind} x="{x:.2f}%" y="{bottom + 16}" text-anchor="middle">'
        yield f"{escape(text)}</text>"
    if across.title:
        yield f'<text x="50%" y="{bottom + 34}" text-anchor="middle">{escape(across.title)}</text>'


def _events(
    layout: Mapping[str, Any], across: Axis, at: Callable[[float, float], Point]
) -> Iterator[str]:
    """A line for each annotation, with its text as title."""
    for shape in layout.get("shapes", ()):
        try:
            x, top = at(across.place(shape["x0"]), 1)
        except KeyError:
            continue
        _, low = at(0, 0)
        yield (
            f'<g class="event" data-x="{escape(shape["x0"])}"><line x1="{x:.2f}%" x2="{x:.2f}%" '
            f'y1="{min(top, low):.1f}" y2="{max(top, low):.1f}"/><circle cx="{x:.2f}%" '
            f'cy="{min(top, low):.1f}" r="5"/><title>{escape(shape["name"])}</title></g>'
        )


def _bars(
    trace: Mapping[str, Any],
    across: Axis,
    up: Axis,
    at: Callable[[float, float], Point],
    lower: dict[Any, float],
) -> Iterator[str]:
    is_level = trace.get("orientation") == "h"
    for place, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
        if x is None or y is None:
            continue
        if is_level:
            (left, middle), (right, _) = at(0, up.place(y)), at(across.place(x), 0)
            high, low = middle - HALF_BAR, middle + HALF_BAR
        else:
            below = lower.get(x, 0.0)
            lower[x] = below + y
            half = BAR_SHARE * across.step / 2
            left, high = at(across.place(x) - half, up.place(below + y))
            right, low = at(across.place(x) + half, up.place(below))
        mark = (
            f'<rect x="{left:.2f}%" y="{high:.1f}" width="{right - left:.2f}%" '
            f'height="{low - high:.1f}" fill="{_colour(trace)}"'
        )
        yield _linked(trace, place, mark, "rect")


def _marks(
    trace: Mapping[str, Any],
    across: Axis,
    up: Axis,
    at: Callable[[float, float], Point],
    _: dict[Any, float],
) -> Iterator[str]:
    points = [
        None if x is None or y is None else at(across.place(x), up.place(y))
        for x, y in zip(trace["x"], trace["y"], strict=True)
    ]
    line = trace.get("line", {})
    if "lines" in trace["mode"] and any(points):
        to = "H{:.2f}V{:.1f}" if line.get("shape") == "hv" else "L{:.2f} {:.1f}"
        # After a gap the line begins again.
        steps = (
            (to if before else "M{:.2f} {:.1f}").format(*point)
            for before, point in pairwise((None, *points))
            if point
        )
        dash = ' stroke-dasharray="6 4"' if line.get("dash") else ""
        # In a box of its own, which is stretched: a path knows no percent.
        yield (
            f'<svg viewBox="0 0 100 100" width="100%" height="100" preserveAspectRatio="none" '
            f'overflow="visible"><path class="line" vector-effect="non-scaling-stroke" '
            f'd="{"".join(steps)}" stroke="{_colour(trace)}"{dash}/></svg>'
        )
    # What is no measured value, such as a limit, has the same value everywhere.
    if not line.get("dash"):
        fill = _colour(trace) if "markers" in trace["mode"] else "transparent"
        for place, point in enumerate(points):
            if point is None:
                continue
            x, y = point
            mark = f'<circle cx="{x:.2f}%" cy="{y:.1f}" r="{RADIUS}" fill="{fill}"'
            yield _linked(trace, place, mark, "circle")


def _linked(trace: Mapping[str, Any], place: int, mark: str, kind: str) -> str:
    """The mark with its title, as a link where the figure has one for it: `meta`, by place."""
    drawn = f'{mark} data-x="{escape(str(trace["x"][place]))}">{_title(trace, place)}</{kind}>'
    link = (trace.get("meta") or {}).get("links", {}).get(str(place), "")
    return f'<a href="{escape(link)}" tabindex="-1">{drawn}</a>' if link else drawn


def _title(trace: Mapping[str, Any], place: int) -> str:
    own = trace.get("customdata")
    value = own[place] if own and isinstance(own[place], str) else f"{trace['y'][place]:g}"
    label = trace["x"][place] if isinstance(trace["x"][place], str | int) else trace["y"][place]
    name = f"{trace['name']} " if trace.get("name") else ""
    return f"<title>{escape(f'{label}: {name}{value}')}</title>"


def _colour(trace: Mapping[str, Any]) -> str:
    colour: str = trace.get("line", {}).get("color") or trace["marker"]["color"]
    return colour


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def points(counts: Sequence[int], *, most: int, steps: int) -> str:
    """The corners of a line, the oldest count at the left edge: "0,24 2,12.5".

    `most` reaches the upper edge; of `steps` places the last ones stay empty when there are
    fewer counts.
    """
    apart = LINE_WIDTH / max(steps - 1, 1)
    high = (LINE_HEIGHT - 2) / max(most, 1)
    corners = [(at * apart, LINE_HEIGHT - 1 - one * high) for at, one in enumerate(counts)]
    return " ".join(f"{x:.4g},{y:.4g}" for x, y in corners)


def area(counts: Sequence[int], *, most: int, steps: int) -> str:
    """The same, closed along the lower edge."""
    if not counts:
        return ""
    right = (len(counts) - 1) * LINE_WIDTH / max(steps - 1, 1)
    line = points(counts, most=most, steps=steps)
    return f"0,{LINE_HEIGHT} {line} {right:.4g},{LINE_HEIGHT}"
