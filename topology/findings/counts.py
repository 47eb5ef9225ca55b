"""How many findings there are of each severity, as pages show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topology.findings.severity import Severity

# Shapes and colours of the site's states.
_MARKS = {
    Severity.REFUSED: "error",
    Severity.LOSS: "error",
    Severity.STUCK: "error",
    Severity.TIMING: "warn",
    Severity.COST: "warn",
    Severity.STYLE: "note",
}


@dataclass(frozen=True)
class Count:
    """The number of findings of a severity; `key` is its name in an address."""

    key: str
    label: str
    mark: str
    number: int


def make_count(severity: Severity, number: int) -> Count:
    return Count(severity.key, severity.label, _MARKS[severity], number)


def make_counts(numbers: Mapping[Severity, int]) -> list[Count]:
    """The worst severity first."""
    return [make_count(severity, numbers[severity]) for severity in sorted(numbers, reverse=True)]
