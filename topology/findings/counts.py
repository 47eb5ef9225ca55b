"""How many findings there are of each severity, as pages show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topology.findings.severity import Severity


@dataclass(frozen=True)
class Count:
    """The number of findings of a severity; `key` is its name in an address, `mark` its shape and colour
    among the site's states."""

    key: str
    label: str
    mark: str
    number: int


def make_count(severity: Severity, number: int) -> Count:
    mark = severity.level.replace("warning", "warn")
    return Count(severity.key, severity.label, mark, number)


def make_counts(numbers: Mapping[Severity, int]) -> list[Count]:
    """The worst severity first."""
    return [make_count(severity, numbers[severity]) for severity in sorted(numbers, reverse=True)]
