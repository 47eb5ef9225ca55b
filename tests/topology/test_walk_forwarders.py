"""Walks through queues whose consumer is a forwarder, ours or that of others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from tests.topology.walks import ms, of, only
from topology.message import Message, Properties
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.routing.forwarder import count_from_now, without_due_header
from topology.routing.remaining_route import trace_remaining_route
from topology.routing.trace_route import Question, ask
from topology.routing.walk import walk

HOOKS = busy_wait_params.Params("hooks", (timedelta(minutes=1), timedelta(minutes=5)))
FOUND = busy_wait.definitions(HOOKS) | of(a_queue("hooks"))
(FORWARDER,) = OURS = busy_wait.forwarders(HOOKS)
OTHERS = [without_due_header(FORWARDER)]
NOW_MS = 1_790_000_000_000
MINUTE_MS = 60_000


def waiting(queue: str, due_ms: int) -> Message:
    headers: dict[str, Any] = {FORWARDER.due_header: due_ms}
    return Message("", queue, Properties(headers=headers), b"")


def test_a_question_is_followed_through_the_laps_of_our_forwarder() -> None:
    question = Question("", FORWARDER.back, {FORWARDER.due_header: NOW_MS + 3 * MINUTE_MS})
    answer = ask(question, a_snapshot(FOUND), forwarders=OURS, now_ms=NOW_MS)
    outcome = only(answer.walk)
    assert (outcome.ending, outcome.queue, outcome.after) == ("delivered", "hooks", ms(180_000))
    assert {
        ("queue", "hooks"),
        ("queue", FORWARDER.queue),
        ("queue", FORWARDER.back),
    } <= answer.identities


def test_without_forwarders_it_ends_where_nobody_hands_it_on() -> None:
    assert only(ask(Question("", FORWARDER.back), a_snapshot(FOUND)).walk).queue == FORWARDER.queue


@pytest.mark.parametrize(
    ("left_ms", "after_ms"), [(-MINUTE_MS, 0), (0, 0), (1, 60_000), (150_000, 180_000)]
)
def test_what_waits_in_the_forwarder_s_queue_goes_on_when_it_is_due(
    left_ms: int, after_ms: int
) -> None:
    message = waiting(FORWARDER.queue, NOW_MS + left_ms)
    walked = trace_remaining_route(FOUND, message, FORWARDER.queue, forwarders=OURS, now_ms=NOW_MS)
    outcome = only(walked)
    assert (outcome.queue, outcome.after) == ("hooks", ms(after_ms))
    assert outcome.hops[0].why == "waiting"


def test_what_is_in_the_middle_of_a_lap_comes_within_one_lap_of_its_moment() -> None:
    message = waiting(FORWARDER.back, NOW_MS + 3 * MINUTE_MS)
    outcome = only(
        trace_remaining_route(FOUND, message, FORWARDER.back, forwarders=OURS, now_ms=NOW_MS)
    )
    assert (outcome.queue, outcome.after, outcome.spread) == ("hooks", ms(180_000), ms(60_000))


def test_a_moment_that_nobody_reads_stays_as_it_is_and_one_of_a_forwarder_is_counted_from_now() -> (
    None
):
    headers = {FORWARDER.due_header: NOW_MS + 7, "other": NOW_MS}
    assert count_from_now(headers, OURS, NOW_MS) == {FORWARDER.due_header: 7, "other": NOW_MS}
    assert count_from_now(headers, (), NOW_MS) == headers
    odd = {FORWARDER.due_header: "soon"}
    assert count_from_now(odd, OURS, NOW_MS) == odd


def test_where_others_read_it_is_taken_and_by_whom_is_told() -> None:
    headers = {FORWARDER.due_header: NOW_MS + 3 * MINUTE_MS}
    outcome = only(walk(FOUND, "", FORWARDER.queue, headers=headers, forwarders=OTHERS))
    assert (outcome.ending, outcome.queue, outcome.after) == ("delivered", FORWARDER.queue, ms(0))
    assert outcome.goes_on.startswith("an external consumer forwards due messages to “hooks”")
    there = only(
        trace_remaining_route(
            FOUND, waiting(FORWARDER.queue, NOW_MS), FORWARDER.queue, forwarders=OTHERS
        )
    )
    assert (there.queue, there.goes_on) == (FORWARDER.queue, outcome.goes_on)
