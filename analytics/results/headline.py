"""The row of key figures of a report, each with its change since the range before. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from analytics import buckets
from analytics.results.definitions import DEFINITIONS
from analytics.results.figures import ENTERED, EXHAUSTED, RECOVERED, UNEXPLAINED, Figures
from analytics.results.section import percent, ratio
from topology.content.text import count_text
from topology.delays import format_ms

ON_TIME_WITHIN_MS = 1000.0
KEYS = ("on_time", "lateness", "failures", "recovered", "dead_letters", "unexplained")


@dataclass(frozen=True)
class KeyFigure:
    """`section` has the numbers; `change` is "" where there is nothing to compare with."""

    label: str
    value: str
    change: str
    section: str
    is_worse: bool = False
    definition: str = ""


def key_figures(
    now: Figures, before: Figures, *, within_ms: float | None = None, compares_counts: bool = True
) -> list[KeyFigure]:
    """On time, p99, first-time failures, recovered, dead letters, unexplained.

    Shares can be compared whatever the number of days is, counts only with those of as many days.
    """
    limit = within_ms or ON_TIME_WITHIN_MS

    def on_time(of: Figures) -> float | None:
        return ratio(buckets.within(of.late, limit), of.measured)

    def recovered(of: Figures) -> float | None:
        done = of.outcome(RECOVERED)
        return ratio(done, done + of.outcome(EXHAUSTED))

    def failed(of: Figures) -> float | None:
        return ratio(of.retried, of.messages)

    def count(label: str, of: Callable[[Figures], int], section: str) -> KeyFigure:
        earlier = of(before) if compares_counts else None
        return _count(label, of(now), earlier, section)

    found = [
        _share(f"within {format_ms(limit)} of due", on_time(now), on_time(before), "lateness"),
        _lateness(now, before),
        _share("first-time failures", failed(now), failed(before), "recovery", is_bad=True),
        _share("recovered by retry", recovered(now), recovered(before), "survival"),
        count("parked dead letters", lambda of: of.by("dead_letters")["parked"], "dead_letters"),
        count(
            f"unexplained of {count_text(now.fate(ENTERED))} scheduled",
            lambda of: of.fate(UNEXPLAINED),
            "ledger",
        ),
    ]
    return [
        replace(figure, definition=DEFINITIONS[key])
        for figure, key in zip(found, KEYS, strict=True)
    ]


def _share(
    label: str, now: float | None, before: float | None, section: str, *, is_bad: bool = False
) -> KeyFigure:
    if now is None:
        return KeyFigure(label, "–", "", section)
    if before is None:
        return KeyFigure(label, percent(now), "", section)
    points = 100 * (now - before)
    is_worse = points >= 0.05 if is_bad else points <= -0.05
    return KeyFigure(label, percent(now), f"{points:+.1f} points", section, is_worse)


def _lateness(now: Figures, before: Figures) -> KeyFigure:
    label = "lateness p99"
    p99, earlier = (buckets.percentile(of.late, 0.99) for of in (now, before))
    if p99 is None:
        return KeyFigure(label, "–", "", "lateness")
    if earlier is None:
        return KeyFigure(label, format_ms(p99), "", "lateness")
    sign = "+" if p99 >= earlier else "-"
    # Less than the width of a bucket is no change.
    is_worse = p99 > 1.28 * earlier and p99 - earlier >= 1
    change = f"{sign}{format_ms(abs(p99 - earlier))}"
    return KeyFigure(label, format_ms(p99), change, "lateness", is_worse)


def _count(label: str, now: int, before: int | None, section: str) -> KeyFigure:
    if before is None:
        return KeyFigure(label, count_text(now), "", section)
    sign = "+" if now >= before else "-"
    change = f"{sign}{count_text(abs(now - before))}"
    return KeyFigure(label, count_text(now), change, section, now > before)
