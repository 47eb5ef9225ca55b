"""A small drawing of counts over time, as the corners of an SVG path; drawn by a template."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT = 120, 24


def points(counts: Sequence[int], *, most: int, steps: int) -> str:
    """The corners of a line, the oldest count at the left edge: "0,24 2,12.5".

    `most` reaches the upper edge; of `steps` places the last ones stay empty when there are
    fewer counts.
    """
    apart = WIDTH / max(steps - 1, 1)
    high = (HEIGHT - 2) / max(most, 1)
    corners = ((number * apart, HEIGHT - 1 - count * high) for number, count in enumerate(counts))
    return " ".join(f"{x:.4g},{y:.4g}" for x, y in corners)


def area(counts: Sequence[int], *, most: int, steps: int) -> str:
    """The same, closed along the lower edge."""
    if not counts:
        return ""
    right = (len(counts) - 1) * WIDTH / max(steps - 1, 1)
    line = points(counts, most=most, steps=steps)
    return f"0,{HEIGHT} {line} {right:.4g},{HEIGHT}"
