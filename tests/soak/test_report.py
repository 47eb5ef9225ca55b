from __future__ import annotations

from tests.soak.parcels import Count
from tests.soak.report import NOT_HELD, counts, figures, problems
from tests.soak.verdict import Sample, judge

GOOD = Count("consumed", 10, 10, 0, 0)
BAD = Count("in the parking queue", 4, 4, 1, 1, (3, 16))


def findings(late: float) -> list[Sample]:
    values = {"site.memory": 57.25, "background_tasks.late": late}
    return [Sample(float(at), dict(values)) for at in range(10)]


def test_the_table_has_a_line_for_each_measure_with_its_bound() -> None:
    head, memory, late = figures(judge(findings(0)))
    assert head.split() == ["first", "last", "highest", "an", "hour", "allowed"]
    assert memory.split() == [
        *("site.memory", "57.2", "57.2", "57.2", "+0.0"),
        *("+20", "an", "hour"),
    ]
    assert late.endswith("0 always")


def test_what_was_not_held_is_marked_and_said() -> None:
    found = judge(findings(1))
    assert [NOT_HELD in line for line in figures(found)] == [False, False, True]
    assert [NOT_HELD in line for line in counts([GOOD, BAD])] == [False, False, True]
    assert problems(found, [GOOD, BAD], ["The site ended."]) == [
        "background_tasks.late: from 1.0 to 1.0 (at most 1.0, +0.0 an hour); allowed is 0 always.",
        "in the parking queue: 1 missing and 1 extra of 4, such as the messages 3, 16.",
        "The site ended.",
    ]


def test_a_soak_that_held_has_nothing_to_say() -> None:
    assert problems(judge(findings(0)), [GOOD], []) == []


def test_without_samples_the_tables_have_their_heads_alone() -> None:
    assert len(list(figures([]))) == 1
    assert len(list(counts([]))) == 1
