"""Attainment of a topology's target, its error budget of 28 days, and how fast it burns. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from analytics import buckets

# Milliseconds within which a delivery is on time where there is no target.
USUAL_WITHIN_MS = 1000.0
# Share of the target up to which the recorder's error leaves lateness measured well.
LARGEST_ERROR = 0.1


def error_limit(within_ms: float | None) -> float:
    """The largest error, in ms, with which lateness is measured well enough for this target."""
    return LARGEST_ERROR * (within_ms or USUAL_WITHIN_MS)


@dataclass(frozen=True)
class Attainment:
    """The deliveries within the target, of those measured; `allowed` is the share that may be
    late.
    """

    measured: int
    within: int
    allowed: float

    @property
    def share(self) -> float | None:
        return self.within / self.measured if self.measured else None

    @property
    def result(self) -> str | None:
        """ "met" or "missed"; None of nothing measured."""
        if not self.measured:
            return None
        # The share that may be late is a difference of floats.
        most = self.allowed * self.measured + 1e-6
        return "met" if self.measured - self.within <= most else "missed"

    @property
    def burn_rate(self) -> float | None:
        """1 uses up the budget in its 28 days; None of nothing measured."""
        if not self.measured:
            return None
        return (self.measured - self.within) / self.measured / self.allowed

    @property
    def budget_left(self) -> float | None:
        """The share of the budget that is left: below 0 where more is late than allowed."""
        return None if self.burn_rate is None else 1 - self.burn_rate

    @property
    def budget_text(self) -> str:
        """The rest of the error budget: "36 % left"; "" if nothing was measured."""
        used = self.burn_rate
        if used is None:
            return ""
        left = f"{100 * (1 - used):.0f} % left"
        return left if used <= 1 else f"used up ({100 * used:.0f} % used)"


def attainment(late: buckets.Counts, percent: float, within_ms: float) -> Attainment:
    """The attainment by the measured deliveries in each bucket of lateness.

    `within_ms` is an edge of a bucket, `percent` less than 100.
    """
    within = buckets.within(late, within_ms)
    return Attainment(sum(late.values()), within, 1 - percent / 100)
