"""Which pattern is advised in place of another, and that both are compared."""

from __future__ import annotations

from datetime import timedelta

import pytest

from topology.patterns.advice import advise
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.hold_queues.params import Params as Holds
from topology.patterns.table import PATTERNS

OLD, MIDDLE, NEW = (3, 10, 8), (4, 0, 5), (4, 3, 6)


@pytest.mark.parametrize(
    ("kind", "version", "advised"),
    [
        ("retry_loop", NEW, "quorum_retry"),
        ("retry_pair", NEW, "quorum_retry"),
        ("retry_ladder", NEW, "quorum_retry"),
        ("retry_loop", MIDDLE, None),
        ("retry_pair", (4, 3, 0), None),
        ("delay_queues", NEW, "quorum_retry"),
        ("delay_queues", OLD, "retry_ladder"),
        ("delayed_exchange", OLD, "delay_levels"),
        ("delayed_exchange", NEW, "delay_levels"),
        ("busy_wait", NEW, "delay_levels"),
        ("quorum_retry", NEW, None),
        ("delay_levels", NEW, None),
        ("hold_queues", NEW, None),
    ],
)
def test_each_pattern_has_its_advice_by_version(
    kind: str, version: tuple[int, ...], advised: str | None
) -> None:
    advice = advise(kind, PATTERNS[kind].EXAMPLE, version)
    assert (advice.kind if advice else None) == advised


def test_hold_queues_for_any_delay_and_classic_levels_are_advised_to_be_quorum_levels() -> None:
    holds = advise("hold_queues", Holds("orders"), NEW)
    assert holds is not None
    assert holds.own.queues == "one for each delay and destination"
    assert (holds.own.writes, holds.other.writes) == ("2 for 1h", "5 for 1h")
    levels = advise("delay_levels", Levels("nsb-v1"), OLD)
    assert levels is not None
    assert (levels.kind, levels.own.queues, levels.other.precision) == (
        "delay_levels",
        "28",
        "steps of 1s",
    )


def test_what_is_compared_is_said_of_both() -> None:
    advice = advise("busy_wait", PATTERNS["busy_wait"].EXAMPLE, NEW)
    assert advice is not None
    for cost in (advice.own, advice.other):
        assert all((cost.title, cost.queues, cost.writes, cost.precision, cost.hazards))
    assert advice.own.writes.startswith("about ")
    assert timedelta(0) not in PATTERNS["busy_wait"].delays(PATTERNS["busy_wait"].EXAMPLE)


@pytest.mark.parametrize(("version", "words"), [(OLD, "is archived"), (NEW, "does not run")])
def test_the_plugin_says_what_became_of_it(version: tuple[int, ...], words: str) -> None:
    advice = advise("delayed_exchange", PATTERNS["delayed_exchange"].EXAMPLE, version)
    assert advice is not None
    assert words in advice.why
