"""Lateness of the last hour on Now: figures, the target of each topology, and its problem."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from analytics import buckets
from analytics.models import Minute, Recording, Slo
from delayboard.now.board import Overview, overview
from delayboard.now.counters import Counter
from tests.site.page_setup import know
from topology.models import Topology

ON_TIME, SECONDS = buckets.bucket_of(0.5), buckets.bucket_of(2000)


@pytest.fixture
def board_of(pair: Topology) -> Topology:
    know(pair.broker)
    Recording.objects.create(topology=pair, read_at=timezone.now() + timedelta(hours=1))
    return pair


def left(topology: Topology, **late: int) -> Overview:
    numbers = {str(ON_TIME): late["on_time"], str(SECONDS): late["seconds"]}
    Minute.objects.create(
        topology=topology, minute_at=timezone.now(), lateness_json=json.dumps(numbers)
    )
    return overview([topology.broker], timezone.now(), timedelta(seconds=5))


def counter(board: Overview) -> Counter:
    return next(one for one in board.counters if one.key == "lateness")


def test_nothing_measured_is_not_zero(board_of: Topology) -> None:
    board = overview([board_of.broker], timezone.now(), timedelta(seconds=5))
    assert (counter(board).text, counter(board).note) == ("–", "nothing measured")
    assert board.lines[0].lateness.text == "–"


def test_percentiles_and_the_share_of_the_target_are_shown(board_of: Topology) -> None:
    Slo.objects.create(topology=board_of, percent=95, within_ms=1000)
    board = left(board_of, on_time=96, seconds=4)
    (line,) = board.lines
    assert line.lateness.text == "<1ms / 2.4s"
    assert line.lateness.note == "96.0 %, target 95 % within 1s of due"
    assert counter(board).text == "2.4s"
    assert counter(board).note == "p50 <1ms of 100 in\u00a01\u00a0h, 0 of 1 SLO missed"
    assert not [one for one in board.warnings if one.key.startswith("burn/")]


def test_a_budget_that_burns_fast_is_a_problem(board_of: Topology) -> None:
    Slo.objects.create(topology=board_of, percent=99, within_ms=1000)
    board = left(board_of, on_time=80, seconds=20)
    (burning,) = [one for one in board.warnings if one.key == f"burn/{board_of.pk}"]
    assert "80.0 % of the deliveries of the last hour met the target" in burning.sentence
    assert "20 times as fast as the target allows" in burning.sentence
    assert counter(board).is_bad


def test_few_late_messages_are_no_problem_yet(board_of: Topology) -> None:
    Slo.objects.create(topology=board_of, percent=99, within_ms=1000)
    board = left(board_of, on_time=0, seconds=4)
    assert not [one for one in board.warnings if one.key.startswith("burn/")]
    assert counter(board).is_bad
