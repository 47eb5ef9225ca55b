from __future__ import annotations

import random

import pytest

from tests.soak.verdict import (
    HOUR_SECONDS,
    RULES,
    Finding,
    Point,
    Sample,
    finding,
    judge,
    rule_for,
    settled,
    slope,
)

EVERY = 10.0


def hour(value: float = 100.0, per_hour: float = 0.0) -> list[Point]:
    """An hour of points on a line."""
    times = [place * EVERY for place in range(int(HOUR_SECONDS / EVERY))]
    return [(at, value + per_hour * at / HOUR_SECONDS) for at in times]


def noisy(points: list[Point], spread: float) -> list[Point]:
    generator = random.Random(5)
    return [(at, value + generator.uniform(-spread, spread)) for at, value in points]


def only(name: str, samples: list[Sample]) -> Finding:
    (found,) = [each for each in judge(samples) if each.name == name]
    return found


def test_the_slope_of_a_line_is_its_own_and_noise_does_not_bend_it() -> None:
    assert slope(hour(per_hour=36)) * HOUR_SECONDS == pytest.approx(36)
    assert slope(noisy(hour(per_hour=36), 5)) * HOUR_SECONDS == pytest.approx(36, abs=2)


def test_a_single_leap_and_a_single_collection_do_not_bend_the_slope() -> None:
    leaping = hour()
    leaping[180] = (leaping[180][0], 900.0)
    leaping[10] = (leaping[10][0], 1.0)
    assert slope(leaping) == 0


@pytest.mark.parametrize("points", [[(0.0, 5.0)], [(3.0, 5.0), (3.0, 9.0)]])
def test_points_of_one_moment_have_no_slope(points: list[Point]) -> None:
    assert slope(points) == 0


def test_memory_that_grows_by_more_than_its_bound_is_a_leak() -> None:
    assert finding("site.memory", noisy(hour(per_hour=10), 3)).is_good
    leak = finding("site.memory", noisy(hour(per_hour=40), 3))
    assert not leak.is_good
    assert leak.per_hour == pytest.approx(40, abs=2)
    assert leak.last > leak.first


def test_memory_that_shrinks_is_good() -> None:
    assert finding("worker.memory", hour(per_hour=-500)).is_good


def test_a_steep_slope_over_a_short_time_is_no_leak_yet() -> None:
    three_minutes = hour(per_hour=60)[:18]
    assert finding("site.memory", three_minutes).is_good


def test_open_files_may_move_but_not_climb() -> None:
    assert finding("site.files", noisy(hour(20), 2)).is_good
    assert not finding("site.files", hour(20, per_hour=12)).is_good


def test_a_connection_that_is_opened_after_the_warm_up_is_found() -> None:
    samples = [Sample(at, {"broker.connections created": 7.0}) for at, _ in hour()]
    assert only("broker.connections created", samples).is_good
    for sample in samples[len(samples) // 2 :]:
        sample.values["broker.connections created"] = 8.0
    assert not only("broker.connections created", samples).is_good


def test_what_happens_in_the_first_sixth_is_warming_up() -> None:
    samples = [Sample(at, {"background_tasks.late": float(at < 500)}) for at, _ in hour()]
    assert only("background_tasks.late", samples).is_good
    assert settled(samples)[0].seconds == 600
    assert settled([]) == []


def test_one_late_background_task_is_found_however_short() -> None:
    samples = [Sample(at, {"background_tasks.late": float(at == 2000)}) for at, _ in hour()]
    assert not only("background_tasks.late", samples).is_good


def test_a_measure_that_is_missing_in_some_samples_is_judged_by_the_others() -> None:
    samples = [Sample(at, {"gaps": 0.0} if at % 20 else {}) for at, _ in hour()]
    assert only("gaps", samples).is_good


def test_what_no_rule_is_about_is_only_shown() -> None:
    assert finding("event log (MB)", hour(per_hour=10_000)).is_good
    assert rule_for("event log (MB)") is RULES[-1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("broker.memory", "flat"),
        ("page Now.heap", "flat"),
        ("traffic.threads", "level"),
        ("site.starts", "still"),
        ("page topology.sockets opened", "still"),
        ("page Now.stale", "zero"),
    ],
)
def test_every_measure_has_the_rule_that_is_meant(name: str, kind: str) -> None:
    assert rule_for(name).kind == kind


def test_each_rule_says_what_it_allows() -> None:
    assert rule_for("site.memory").text == "+20 an hour"
    assert rule_for("site.files").text == "+3 in all"
    assert rule_for("site.starts").text == "stays"
    assert rule_for("gaps").text == "0 always"
    assert RULES[-1].text == ""
