"""Busy wait: names, laps, its walk through the forwarder, what a copy of it means."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.builders import a_queue, a_snapshot
from tests.topology.walks import MIDDLE, NEW, OLD, ms, only
from topology.definitions import Arguments, Definitions, Queue
from topology.message import PUBLISHED_AT_HEADER, Forwarder
from topology.patterns.busy_wait.params import WAITED_HEADER, Params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.pattern import ParamsError
from topology.patterns.table import PATTERNS
from topology.provisioning.verify import Verification, verify
from topology.routing.walk import walk
from topology.snapshot import QueueNumbers
from topology.structure.copies import Copy

MINUTE = timedelta(minutes=1)
HOOKS = Params("hooks", (MINUTE, 2 * MINUTE, 4 * MINUTE))
STANDING = busy_wait.definitions(HOOKS) | Definitions.of([a_queue("hooks")])
FORWARDERS = busy_wait.forwarders(HOOKS)


def test_the_delay_queue_is_that_of_the_article_and_the_processing_queue_is_left_alone() -> None:
    assert busy_wait.definitions(HOOKS) == Definitions.of(
        [
            Queue(
                "hooks-delay",
                arguments=Arguments(
                    {
                        "x-queue-type": "classic",
                        "x-message-ttl": 60_000,
                        "x-dead-letter-exchange": "",
                        "x-dead-letter-routing-key": "hooks-busy-wait",
                    }
                ),
            ),
            Queue("hooks-busy-wait", arguments=Arguments({"x-queue-type": "classic"})),
        ]
    )
    (forwarder,) = FORWARDERS
    assert forwarder == Forwarder("hooks-busy-wait", "hooks", "hooks-delay", "due-at-ms")


@pytest.mark.parametrize(
    ("delays", "lap"),
    [("1m, 2m, 4m, 8m", "1m"), ("90s, 1m", "30s"), ("300ms, 450ms", "150ms"), ("5s", "5s")],
)
def test_a_lap_takes_the_greatest_common_divisor_of_the_delays(delays: str, lap: str) -> None:
    params = busy_wait.parse({"queue": "q", "delays": delays})
    assert params.lap == busy_wait.parse({"queue": "q", "delays": lap}).delays[0]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (timedelta(0), timedelta(0)),
        (timedelta(microseconds=1), MINUTE),
        (MINUTE, MINUTE),
        (timedelta(seconds=61), 2 * MINUTE),
        (8 * MINUTE, 8 * MINUTE),
    ],
)
def test_delays_are_rounded_up_to_whole_laps(asked: timedelta, given: timedelta) -> None:
    assert busy_wait.achievable(HOOKS, asked) == given
    route = busy_wait.route(HOOKS, asked, "hooks")
    assert route.due_after == given
    due = 1_000_000 + given // timedelta(milliseconds=1)
    assert route.make_headers(1_000_000) == ({"due-at-ms": due} if asked else {})


def test_the_form_and_the_page_say_the_price_and_the_rounding() -> None:
    helps = {field.name: field.help for field in busy_wait.FIELDS}
    assert "rounds other delays up" in helps["delays"]
    assert "1000 publishes a second" in helps["delays"]
    assert "Each waiting message costs one publish per lap" in busy_wait.EXPLANATION.cost
    said = busy_wait.remarks(HOOKS, STANDING)
    assert "A lap takes 1m. Delayboard rounds delays up to multiples of it." in said
    assert any("no tap observes the default exchange" in one for one in said)
    assert not any("does not exist" in one for one in said)
    assert "The queue “hooks” does not exist" in busy_wait.remarks(HOOKS, Definitions())[0]


@pytest.mark.parametrize(
    ("delay", "target", "problem"),
    [
        (MINUTE, "other", "always go to hooks"),
        (timedelta(days=3651), "hooks", "at most 3650 days"),
    ],
)
def test_what_it_cannot_do_is_refused(delay: timedelta, target: str, problem: str) -> None:
    with pytest.raises(ParamsError, match=problem):
        busy_wait.route(HOOKS, delay, target)


@pytest.mark.parametrize("version", [OLD, MIDDLE, NEW])
@pytest.mark.parametrize("laps", [1, 2, 3, 5_256_000])
def test_a_walk_through_the_forwarder_takes_any_number_of_laps(
    version: tuple[int, ...], laps: int
) -> None:
    headers = {"due-at-ms": laps * 60_000}
    walked = walk(
        STANDING, "", "hooks-delay", version=version, headers=headers, forwarders=FORWARDERS
    )
    outcome = only(walked)
    assert (outcome.ending, outcome.queue, outcome.after) == ("delivered", "hooks", laps * MINUTE)
    assert outcome.spread == timedelta(0)
    stays = [hop.wait for hop in outcome.hops if hop.queue == "hooks-delay"]
    assert sum((stay or timedelta(0) for stay in stays), timedelta(0)) == laps * MINUTE
    assert len(outcome.hops) == (3 if laps == 1 else 5)


@given(st.integers(-5, 10_000_000), st.integers(50, 70_000))
def test_whatever_the_due_time_it_is_passed_on_at_the_first_end_of_a_lap(
    due: int, lap: int
) -> None:
    params = Params("q", (ms(lap),))
    there = busy_wait.definitions(params) | Definitions.of([a_queue("q")])
    forwarders = busy_wait.forwarders(params)
    outcome = only(walk(there, "", "q-delay", headers={"due-at-ms": due}, forwarders=forwarders))
    after = outcome.after // ms(1)
    assert after >= due
    assert after % lap == 0
    assert after == lap or after < due + lap


@pytest.mark.parametrize("due", [None, "60000", True, 1.5, 10**15, [3]])
def test_one_that_does_not_say_when_it_is_due_is_passed_on_at_once(due: Any) -> None:
    headers = {} if due is None else {"due-at-ms": due}
    walked = walk(STANDING, "", "hooks-delay", headers=headers, forwarders=FORWARDERS)
    assert (only(walked).queue, only(walked).after) == ("hooks", MINUTE)


def test_without_the_processing_queue_it_is_held_and_without_the_delay_queue_too() -> None:
    headers = {"due-at-ms": 180_000}
    for gone, start in (("hooks", "hooks-delay"), ("hooks-delay", "hooks-busy-wait")):
        there = STANDING.without([("queue", gone)])
        outcome = only(walk(there, "", start, headers=headers, forwarders=FORWARDERS))
        assert (outcome.ending, outcome.queue) == ("stuck", "hooks-busy-wait")
        assert f"until the queue “{gone}” exists" in outcome.why


def test_without_a_forwarder_it_stays_in_the_busy_waiting_queue() -> None:
    assert only(walk(STANDING, "", "hooks-delay")).queue == "hooks-busy-wait"


def test_what_comes_at_an_uncertain_time_is_passed_on_within_a_lap_of_its_due_time() -> None:
    first = a_queue("slow", ttl=30_000, dlx="", key="hooks-delay")
    headers = {"due-at-ms": 600_000}
    walked = walk(
        STANDING | Definitions.of([first]),
        "",
        "slow",
        headers=headers,
        expiration="1000",
        forwarders=FORWARDERS,
    )
    outcome = only(walked)
    assert (outcome.after, outcome.latest) == (10 * MINUTE, 11 * MINUTE)


def test_laps_that_lead_elsewhere_are_followed_one_by_one() -> None:
    """The delay queue of this one dies into another queue before it comes back."""
    there = Definitions.of(
        [
            a_queue("a-delay", ttl=100, dlx="", key="between"),
            a_queue("between", ttl=50, dlx="", key="a-busy-wait"),
            a_queue("a-busy-wait"),
            a_queue("a"),
        ]
    )
    forwarders = busy_wait.forwarders(Params("a", (ms(100),)))
    outcome = only(walk(there, "", "a-delay", headers={"due-at-ms": 1000}, forwarders=forwarders))
    assert (outcome.queue, outcome.after) == ("a", ms(1050))


def test_a_lap_without_a_time_is_said_to_have_no_end_rather_than_followed_for_ever() -> None:
    there = STANDING.without([("queue", "hooks-delay")]) | Definitions.of(
        [a_queue("hooks-delay", ttl=0, dlx="", key="hooks-busy-wait")]
    )
    walked = walk(there, "", "hooks-delay", headers={"due-at-ms": 5}, forwarders=FORWARDERS)
    assert only(walked).ending == "uncertain"


def verdict(consumers: int, there: Definitions = STANDING) -> Verification:
    numbers = {q.name: QueueNumbers(consumers=0) for q in there.queues}
    numbers["hooks-busy-wait"] = QueueNumbers(consumers=consumers)
    wanted = busy_wait.definitions(HOOKS)
    return verify(PATTERNS[busy_wait.KIND], HOOKS, wanted, a_snapshot(there, numbers))


def test_verify_walks_each_delay_and_asks_for_a_forwarder() -> None:
    reported = verdict(consumers=1)
    assert reported.holds
    assert [check.sentence for check in reported.checks] == [
        "A probe would arrive in hooks after 1m.",
        "A probe would arrive in hooks after 2m.",
        "A probe would arrive in hooks after 4m.",
        "The delay queue hooks-delay has no consumers.",
        "A forwarder consumes hooks-busy-wait.",
    ]
    (wrong,) = [check for check in verdict(consumers=0).checks if not check.holds]
    assert "hooks-busy-wait has no consumer, so no message leaves the delay" in wrong.sentence


def test_verify_says_when_the_processing_queue_is_missing() -> None:
    reported = verdict(1, STANDING.without([("queue", "hooks")]))
    assert "until the queue “hooks” exists" in reported.checks[0].sentence
    assert not reported.holds
    assert "The queue “hooks” does not exist" in busy_wait.target_problem(
        HOOKS, "hooks", Definitions()
    )
    assert busy_wait.target_problem(HOOKS, "hooks", STANDING) == ""


def copy_of(queue: str, **headers: Any) -> Copy:
    return Copy("", queue, {name.replace("_", "-"): value for name, value in headers.items()})


def test_the_first_publish_is_an_entry_the_last_an_exit_and_the_laps_are_neither() -> None:
    stamp = {"due-at-ms": 1_000_000_240_000, PUBLISHED_AT_HEADER: 1_000_000_000_000}
    waited = stamp | {WAITED_HEADER: 1_000_000_240_000}
    entry = busy_wait.read(HOOKS, Copy("", "hooks-delay", stamp))
    leaving = busy_wait.read(HOOKS, Copy("", "hooks", waited))
    assert busy_wait.read(HOOKS, Copy("", "hooks-delay", waited)) is None
    assert entry is not None
    assert leaving is not None
    assert (entry.phase, entry.queue, entry.delay) == ("entry", "hooks-delay", 4 * MINUTE)
    assert (leaving.phase, leaving.queue, leaving.delay) == ("exit", "hooks-busy-wait", 4 * MINUTE)
    assert entry.attempt == leaving.attempt == 1


def test_an_exit_that_does_not_tell_its_delay_is_read_as_one_of_a_lap() -> None:
    stamp = {"due-at-ms": 1_000_000_240_000, WAITED_HEADER: 1_000_000_240_000}
    reading = busy_wait.read(HOOKS, Copy("", "hooks", stamp))
    assert reading is not None
    assert (reading.phase, reading.delay) == ("exit", MINUTE)


def test_a_consumer_that_delays_a_message_once_more_makes_a_new_entry() -> None:
    again = copy_of("hooks-delay", **{"due-at-ms": 120_000, WAITED_HEADER: 60_000}, attempt=2)
    reading = busy_wait.read(HOOKS, again)
    assert reading is not None
    assert (reading.phase, reading.attempt, reading.delay) == ("entry", 2, 2 * MINUTE)


@pytest.mark.parametrize(
    "headers", [{}, {"due-at-ms": 60_000}, {"due-at-ms": 2, WAITED_HEADER: 1}, {WAITED_HEADER: 1}]
)
def test_what_comes_to_the_processing_queue_by_another_way_is_a_publish(
    headers: dict[str, Any],
) -> None:
    reading = busy_wait.read(HOOKS, Copy("", "hooks", headers))
    assert reading is not None
    assert (reading.phase, reading.attempt) == ("publish", 0)


@pytest.mark.parametrize(
    "copy",
    [
        Copy("x", "hooks-delay", {"due-at-ms": 60_000}),
        Copy("", "elsewhere", {"due-at-ms": 60_000}),
        Copy("", "hooks-delay", {}),
        Copy("", "hooks-delay", {"due-at-ms": "60000"}),
        Copy("", "hooks-delay", {"due-at-ms": 1_000_000_240_000}),
    ],
)
def test_a_copy_that_is_none_of_it_or_does_not_tell_its_delay_is_not_read(copy: Copy) -> None:
    assert busy_wait.read(HOOKS, copy) is None


def test_another_due_header_is_used_throughout() -> None:
    params = Params("hooks", (MINUTE,), "expires")
    assert busy_wait.route(params, MINUTE, "hooks").make_headers(5) == {"expires": 60_005}
    assert busy_wait.forwarders(params)[0].due_header == "expires"
    assert '"expires"' in busy_wait.consumer_example(params)
    assert busy_wait.read(params, Copy("", "hooks-delay", {"expires": 5})) is not None


def test_half_of_one_is_recognised_with_what_it_lacks() -> None:
    (use,) = busy_wait.recognize(
        busy_wait.definitions(HOOKS).without([("queue", "hooks-busy-wait")])
    )
    assert use.claims == {("queue", "hooks-delay")}
    assert use.missing == (
        "The queue “hooks-busy-wait” is missing.",
        "The processing queue “hooks” is missing.",
    )


@pytest.mark.parametrize(
    "queue",
    [
        a_queue("hooks-delay", ttl=60_000, dlx="", key="hooks"),
        a_queue("hooks-delay", dlx="", key="hooks-busy-wait"),
        a_queue("hooks-delay", ttl=5, dlx="", key="hooks-busy-wait"),
        a_queue("-delay", ttl=60_000, dlx="", key="-busy-wait"),
        a_queue("hooks-delay", ttl=60_000, dlx="x", key="hooks-busy-wait"),
    ],
)
def test_what_is_no_busy_wait_of_ours_is_not_recognised(queue: Queue) -> None:
    there = Definitions.of([queue, a_queue("hooks"), a_queue("hooks-busy-wait")])
    assert list(busy_wait.recognize(there)) == []


def entered(at_ms: int, **headers: int) -> timedelta:
    reading = busy_wait.read(Params("a", (ms(100),)), Copy("", "a-delay", headers, at_ms=at_ms))
    assert reading is not None
    return reading.delay


def test_an_entry_is_as_long_as_its_stamp_says_and_once_more_as_when_it_was_copied() -> None:
    stamp = {PUBLISHED_AT_HEADER: 10_000, "due-at-ms": 11_500}
    assert entered(10_700, **stamp) == ms(1500)
    assert entered(11_000, **(stamp | {"attempt": 2})) == ms(500)
    assert entered(11_000, **{"due-at-ms": 11_500}) == ms(500)
