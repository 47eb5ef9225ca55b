"""How ways end: consumers that do not ack, queues that keep, doubts, refusals; and laws."""

from __future__ import annotations

from typing import Any

import pytest

from tests.topology.builders import a_queue
from tests.topology.walks import AT_LEAST_ONCE, MIDDLE, NEW, OLD, ms, of, only
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.routing.context import Consumer
from topology.routing.walk import walk


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ({"dlx": "gone"}, "the exchange “gone” does not exist"),
        ({"dlx": "", "key": "gone"}, "the default exchange has no queue for the key “gone”"),
        ({"dlx": "", "key": "hold"}, "RabbitMQ drops the message before “hold”"),
    ],
)
def test_at_least_once_keeps_what_it_cannot_hand_on(target: dict[str, str], why: str) -> None:
    outcome = only(walk(of(a_queue("hold", ttl=10, **target, **AT_LEAST_ONCE)), "", "hold"))
    assert (outcome.ending, outcome.queue, outcome.after) == ("stuck", "hold", ms(10))
    assert (
        "“hold” dead-letters at least once and stores the message until RabbitMQ can route it: "
        f"{why}"
    ) in outcome.why


def test_at_least_once_keeps_nothing_when_one_of_its_targets_takes_it() -> None:
    found = of(
        Exchange("x", "fanout"),
        a_queue("hold", ttl=10, dlx="x", **AT_LEAST_ONCE),
        Queue("work"),
        Binding("x", "hold", ""),
        Binding("x", "work", ""),
    )
    assert {(o.ending, o.queue) for o in walk(found, "", "hold").outcomes} == {
        ("delivered", "work"),
        ("dropped", "hold"),
    }


def test_at_least_once_keeps_one_message_however_many_rings_are_cut() -> None:
    found = of(
        Exchange("x", "fanout"),
        a_queue("first", ttl=10, dlx="", key="hold"),
        a_queue("hold", ttl=10, dlx="x", **AT_LEAST_ONCE),
        Binding("x", "first", ""),
        Binding("x", "hold", ""),
    )
    outcome = only(walk(found, "", "first"))
    assert (outcome.ending, outcome.queue) == ("stuck", "hold")
    assert "before “first” and “hold”" in outcome.why


@pytest.mark.parametrize(
    ("changed", "doubts"),
    [({"x_overflow": "drop-head"}, 1), ({"type": "classic"}, 0)],
)
def test_at_least_once_falls_back_without_what_it_needs(
    changed: dict[str, str], doubts: int
) -> None:
    hold = a_queue("hold", ttl=10, dlx="gone", **(AT_LEAST_ONCE | changed))
    outcome = only(walk(of(hold), "", "hold"))
    assert outcome.ending == "dropped"
    assert len([doubt for doubt in outcome.doubts if "without x-overflow" in doubt]) == doubts


@pytest.mark.parametrize(("type_", "after"), [("classic", 0), ("quorum", 1)])
def test_a_time_of_nothing_is_a_millisecond_in_a_quorum_queue(type_: str, after: int) -> None:
    found = of(a_queue("hold", ttl=0, type=type_, dlx="", key="work"), Queue("work"))
    assert only(walk(found, "", "hold")).after == ms(after)


def test_an_exchange_type_of_a_plugin_leaves_the_way_uncertain() -> None:
    found = of(Exchange("x", "x-consistent-hash"), Queue("work"), Binding("x", "work", "1"))
    outcome = only(walk(found, "x", "k"))
    assert outcome.ending == "uncertain"
    assert outcome.why == (
        "Delayboard cannot predict the exchange “x” of the type x-consistent-hash"
    )


@pytest.mark.parametrize(
    ("arguments", "doubt"),
    [
        (
            {"x_max_length": 5},
            "“q” holds at most 5 messages. When the queue is full, RabbitMQ drops the oldest "
            "message.",
        ),
        (
            {"x_max_length_bytes": 5, "x_overflow": "reject-publish"},
            "“q” holds at most 5 bytes. When the queue is full, RabbitMQ rejects new messages.",
        ),
        (
            {"x_expires": 5000},
            (
                "RabbitMQ deletes “q” and its messages after 5s without use. A publish does not "
                "count as use."
            ),
        ),
    ],
)
def test_what_may_still_change_the_way_is_said(arguments: dict[str, Any], doubt: str) -> None:
    assert only(walk(of(a_queue("q", **arguments)), "", "q")).doubts == (doubt,)


@pytest.mark.parametrize(
    ("arguments", "doubts"),
    [
        ({}, ()),
        ({"dlx": "elsewhere"}, ("“q” has no TTL, so a dead letter remains in it until",)),
        ({"type": "quorum", "x_max_length": 5, "x_overflow": "reject-publish"}, ()),
    ],
)
def test_doubts_of_a_dead_letter_are_about_dead_letters(
    arguments: dict[str, Any], doubts: tuple[str, ...]
) -> None:
    wait = a_queue("wait", ttl=5, dlx="", key="q")
    outcome = only(walk(of(wait, a_queue("q", **arguments)), "", "wait"))
    assert len(outcome.doubts) == len(doubts)
    assert all(map(str.startswith, outcome.doubts, doubts))


def test_a_full_queue_keeps_what_died_at_least_once_where_it_was() -> None:
    wait = a_queue("wait", ttl=5, dlx="", key="q", **AT_LEAST_ONCE)
    full = a_queue("q", type="quorum", x_max_length=5, x_overflow="reject-publish")
    (doubt,) = only(walk(of(wait, full), "", "wait")).doubts
    assert doubt.endswith("this message waits in the queue where it died.")


def test_a_shorter_expiration_may_wait_behind_longer_lives() -> None:
    found = of(a_queue("hold", ttl=1000, dlx="", key="work"), Queue("work"))
    outcome = only(walk(found, "", "hold", expiration="200"))
    assert (outcome.after, outcome.latest) == (ms(200), ms(1000))
    alone = of(a_queue("hold", dlx="", key="work"), Queue("work"))
    assert only(walk(alone, "", "hold", expiration="200")).latest is None
    assert only(walk(found, "", "hold")).latest == ms(1000)


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"expiration": "1.5"}, "“1.5” is not a whole number"),
        ({"expiration": "-1"}, "“-1” is not a whole number"),
        ({"expiration": "315360000001"}, "up to ten years"),
        ({"headers": {"CC": "work"}}, "CC is not a list"),
    ],
)
def test_a_publish_that_the_broker_refuses_goes_nowhere(stated: dict[str, Any], why: str) -> None:
    walked = walk(of(Queue("work")), "", "work", **stated)
    assert only(walked).ending == "dropped"
    assert why in only(walked).why
    assert not walked.is_routed


def test_an_internal_exchange_takes_dead_letters_but_no_publish() -> None:
    found = of(
        Exchange("x", "fanout", internal=True),
        a_queue("hold", ttl=1, dlx="x"),
        Queue("work"),
        Binding("x", "work", ""),
    )
    assert only(walk(found, "", "hold")).queue == "work"
    assert "is internal" in only(walk(found, "x", "hold")).why


def test_cc_and_bcc_are_kept_until_a_queue_has_a_key_of_its_own() -> None:
    found = of(
        Exchange("x"),
        a_queue("hold", ttl=1, dlx="x"),
        a_queue("own", ttl=1, dlx="x", key="k"),
        *(Queue(name) for name in "abk"),
        *(Binding("x", name, name) for name in "abk"),
    )
    headers = {"CC": ["a"], "BCC": ["b"]}
    assert [o.queue for o in walk(found, "", "hold", headers=headers).outcomes] == ["a", "b"] * 2
    kept = [o.queue for o in walk(found, "", "own", headers=headers).delivered if len(o.hops) > 1]
    assert kept == ["k"]


def test_a_headers_exchange_knows_why_a_message_died() -> None:
    wanted = Arguments({"x-match": "all-with-x", "x-first-death-reason": "expired"})
    found = of(
        Exchange("x", "headers"),
        a_queue("hold", ttl=1, dlx="x"),
        Queue("work"),
        Binding("x", "work", "", arguments=wanted),
    )
    assert only(walk(found, "", "hold")).queue == "work"
    assert not walk(found, "x", "hold").is_routed


@pytest.mark.parametrize(("version", "ending"), [(OLD, "dropped"), (MIDDLE, "delivered")])
def test_a_stream_takes_dead_letters_from_3_12_on(version: tuple[int, ...], ending: str) -> None:
    plain = a_queue("hold", ttl=10, dlx="", key="stream")
    found = of(plain, a_queue("stream", type="stream"))
    assert only(walk(found, "", "hold", version=version)).ending == ending
    assert only(walk(found, "", "stream", version=version)).ending == "delivered"
    kept = of(
        a_queue("hold", ttl=10, dlx="", key="stream", **AT_LEAST_ONCE), *found.queues - {plain}
    )
    assert only(walk(kept, "", "hold", version=version)).ending == "delivered"


def test_before_4_0_a_queue_that_hands_on_to_itself_at_least_once_keeps_it_besides() -> None:
    found = of(a_queue("work", dlx="", **AT_LEAST_ONCE))
    consumers = {"work": Consumer("rejects", 1)}
    ends = [
        (o.ending, o.queue)
        for o in walk(found, "", "work", version=OLD, consumers=consumers).outcomes
    ]
    assert ends == [("stuck", "work"), ("delivered", "work")]
    assert only(walk(found, "", "work", version=NEW, consumers=consumers)).ending == "delivered"
