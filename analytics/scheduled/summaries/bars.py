"""A histogram as SVG: stacked bars, each a link; pure.

It is stretched to the width of its page, so it contains no text: labels and a table with the same
numbers are beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from analytics.scheduled.summaries.histogram import Bar, Histogram
from topology.graph.svg_elements import attribute, content, n

WIDTH, HEIGHT, GAP = 1000.0, 120.0, 0.12
# What is there can be seen, however much more there is elsewhere.
LEAST = 2.0


def draw(histogram: Histogram, link: Sequence[str], words: Sequence[str]) -> str:
    """The diagram; `link` is the target of each bar, `words` its hover text.

    Hidden from screen readers and from the keyboard, which have the table.
    """
    step = WIDTH / max(1, len(histogram.bars))
    bars = [
        _bar(bar, place * step, step, histogram.highest, link[place], words[place])
        for place, bar in enumerate(histogram.bars)
        if bar.total
    ]
    return (
        f'<svg class="due-bars" viewBox="0 0 {n(WIDTH)} {n(HEIGHT)}" preserveAspectRatio="none"'
        f' aria-hidden="true" focusable="false">{"".join(bars)}</svg>'
    )


def _bar(bar: Bar, left: float, step: float, highest: int, link: str, words: str) -> str:
    drawn, top = [], HEIGHT
    scale = HEIGHT / highest
    rise = max(1.0, LEAST / (bar.total * scale))
    for place, number in enumerate(bar.numbers, start=1):
        if number:
            height = number * scale * rise
            top -= height
            drawn.append(
                f'<rect class="due-{place}" x="{left + step * GAP / 2:.2f}" y="{top:.2f}"'
                f' width="{step * (1 - GAP):.2f}" height="{height:.2f}"/>'
            )
    return (
        f'<a href="{attribute(link)}" tabindex="-1"><title>{content(words)}</title>'
        f'<rect class="due-hit" x="{left:.2f}" y="0" width="{step:.2f}" height="{n(HEIGHT)}"/>'
        f"{''.join(drawn)}</a>"
    )
