"""The row of key figures of a report, each with its change since the range before. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from analytics import buckets
from analytics.results.figures import ENTERED, EXHAUSTED, RECOVERED, UNEXPLAINED, Figures
from analytics.results.section import DEFINITIONS, percent, ratio
from topology.content.text import count_text
from topology.delays import format_ms

ON_TIME_WITHIN_MS = 1000.0


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

    def measure(of: Figures) -> tuple[float | None, ...]:
        done = of.outcome(RECOVERED)
        return (
            ratio(buckets.within(of.late, limit), of.measured),
            buckets.percentile(of.late, 0.99),
            ratio(of.retried, of.messages),
            ratio(done, done + of.outcome(EXHAUSTED)),
            of.by("dead_letters")["parked"],
            of.fate(UNEXPLAINED),
        )

    entered = count_text(now.fate(ENTERED))
    rows = (
        ("on_time", f"within {format_ms(limit)} of due", "lateness", _share),
        ("lateness", "lateness p99", "lateness", _lateness),
        ("failures", "first-time failures", "recovery", _share),
        ("recovered", "recovered by retry", "survival", _share),
        ("dead_letters", "parked dead letters", "dead_letters", _count),
        ("unexplained", f"unexplained of {entered} scheduled", "ledger", _count),
    )
    found = []
    measured = zip(measure(now), measure(before), rows, strict=True)
    for value, earlier, (key, label, section, write) in measured:
        text, change, is_more = "–", "", 0
        if value is not None:
            text, change, is_more = write(value, value if earlier is None else earlier)
        if earlier is None or (write is _count and not compares_counts):
            change, is_more = "", 0
        is_worse = is_more == (-1 if key in ("on_time", "recovered") else 1)
        found.append(KeyFigure(label, text, change, section, is_worse, DEFINITIONS[key]))
    return found


def _share(now: float, before: float) -> tuple[str, str, int]:
    """The figure, its change, and whether it is more (1) or less (-1) by so much that it counts."""
    points = 100 * (now - before)
    return percent(now), f"{points:+.1f} points", (points >= 0.05) - (points <= -0.05)


def _lateness(now: float, before: float) -> tuple[str, str, int]:
    change = f"{'+' if now >= before else '-'}{format_ms(abs(now - before))}"
    # Less than the width of a bucket is no change.
    return format_ms(now), change, int(now > 1.28 * before and now - before >= 1)


def _count(now: float, before: float) -> tuple[str, str, int]:
    change = f"{'+' if now >= before else '-'}{count_text(abs(int(now - before)))}"
    return count_text(int(now)), change, int(now > before)
