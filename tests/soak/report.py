"""PURE: findings and counts -> the lines that a person reads at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.soak.parcels import Count
from tests.soak.verdict import Finding

NOT_HELD = "  <- NOT HELD"


def figures(findings: Sequence[Finding]) -> Iterator[str]:
    """A table of the measures: the medians of the first and last third, after the warm-up."""
    width = max((len(found.name) for found in findings), default=0)
    yield f"{'':<{width}}  {'first':>9} {'last':>9} {'highest':>9} {'an hour':>9}  allowed"
    for found in findings:
        numbers = (found.first, found.last, found.highest)
        row = " ".join(f"{number:>9.{places(number)}f}" for number in numbers)
        row += f" {found.per_hour:>+9.1f}  {found.rule.text}"
        yield f"{found.name:<{width}}  {row}{'' if found.is_good else NOT_HELD}".rstrip()


def counts(found: Sequence[Count]) -> Iterator[str]:
    """A table of what was to happen to the messages and what did."""
    width = max((len(count.what) for count in found), default=0)
    yield f"{'':<{width}}  {'expected':>9} {'seen':>9} {'missing':>9} {'extra':>9}"
    for count in found:
        numbers = (count.expected, count.seen, count.missing, count.extra)
        row = " ".join(f"{number:>9}" for number in numbers)
        yield f"{count.what:<{width}}  {row}{'' if count.is_exact else NOT_HELD}"


def problems(
    findings: Sequence[Finding], found: Sequence[Count], others: Sequence[str]
) -> list[str]:
    """Why the soak failed, in sentences; empty when it held."""
    said = [
        f"{f.name}: from {f.first:.1f} to {f.last:.1f} (at most {f.highest:.1f}, "
        f"{f.per_hour:+.1f} an hour); allowed is {f.rule.text}."
        for f in findings
        if not f.is_good
    ]
    said += [
        f"{c.what}: {c.missing} missing and {c.extra} extra of {c.expected}, "
        f"such as the messages {', '.join(map(str, c.examples))}."
        for c in found
        if not c.is_exact
    ]
    return [*said, *others]


def places(number: float) -> int:
    """One decimal place where it says something."""
    return 0 if number == int(number) else 1
