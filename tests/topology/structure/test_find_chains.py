"""Chains in definitions as libraries and people declare them, and in those of every pattern."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given

from tests.real_broker.proof.case import Case
from tests.real_broker.proof.strategies import make_case
from tests.topology.pattern_cases import CASES
from tests.topology.structure.exits import leave
from tests.topology.test_patterns import copy_of, routes, standing
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.patterns.table import PATTERNS
from topology.routing.outcome import RouteOutcome
from topology.routing.walk import walk
from topology.structure.chain import Chain
from topology.structure.copies import Copy, Reading
from topology.structure.find_chains import find_chains, make_chain
from topology.structure.reading import Reader
from topology.structure.taps import describe_observation, place_taps

SECOND, MILLISECOND = timedelta(seconds=1), timedelta(milliseconds=1)
TTL: dict[str, Any] = {"x-message-ttl": 1000}
# An exchange before delays, and one behind them.
MAIL: tuple[BrokerObject, ...] = (
    Exchange("later"),
    Exchange("done"),
    Queue("mail"),
    Binding("done", "mail", "mail"),
)
# Delays in an exchange, and in the work queue itself, which no copy shows.
UNREAD = {"delayed_exchange", "quorum_retry"}


def only(*objects: BrokerObject, consumed: frozenset[str] = frozenset()) -> Chain:
    (chain,) = find_chains(Definitions.of(objects), consumed)
    return chain


def holding(name: str, exchange: str, key: str | None = None, **arguments: Any) -> Queue:
    stated = {"x-dead-letter-exchange": exchange, **arguments}
    if key is not None:
        stated["x-dead-letter-routing-key"] = key
    return Queue(name, arguments=Arguments(stated))


@pytest.mark.parametrize("kind", sorted(CASES.keys() - UNREAD))
def test_structure_reads_the_copies_of_every_pattern_as_the_pattern_means_them(kind: str) -> None:
    pattern = PATTERNS[kind]

    @given(CASES[kind].params)
    def law(params: Any) -> None:
        found = standing(pattern, params)
        chains = find_chains(found, {one.queue for one in pattern.forwarders(params)})
        for delay, target in routes(pattern, params):
            if not delay:
                continue
            copy = copy_of(pattern.route(params, delay, target))
            (outcome,) = walk(found, copy.exchange, copy.routing_key, headers=copy.headers).outcomes
            (chain,) = [one for one in chains if outcome.hops[0].queue in one.queues]
            reader = Reader(chain)
            entry = reader.read(copy)
            assert entry is not None
            assert (entry.phase, entry.attempt) == ("entry", 1)
            if kind != "busy_wait":
                assert entry.delay == pattern.achievable(params, delay)
            left = leave(chain, found, outcome, copy)
            assert left is not None
            out = reader.read(left)
            assert out is not None
            assert (out.phase, out.attempt, out.delay) == ("exit", 1, entry.delay)
            assert out.destination == entry.destination

    law()


def test_what_structure_says_of_a_publish_is_what_the_route_simulation_says() -> None:
    read = left = 0
    for seed in range(300):
        case = make_case(Random(seed))
        found = case.definitions
        chains = find_chains(found)
        delays = {name for chain in chains if not chain.is_native for name in chain.queues}
        others = {queue.name for queue in found.queues} - delays
        walked = walk(
            found,
            case.exchange,
            case.routing_key,
            headers=case.headers,
            expiration=case.expiration,
            consumed=others,
        )
        copy = Copy(case.exchange, case.routing_key, case.headers, case.expiration)
        for chain in chains:
            if chain.is_native:
                continue
            reading = Reader(chain).read(copy)
            entering = [
                one for one in walked.outcomes if one.hops and one.hops[0].queue in chain.queues
            ]
            if "x-death" in case.headers:
                continue
            assert (reading is not None and reading.phase == "entry") == bool(entering), case
            if reading is not None and entering:
                assert reading.delay == max(one.after for one in entering), case
                read += 1
                for one in entering:
                    if one.ending == "delivered" and one.after == reading.delay:
                        assert leaves(chain, case, one, reading), case
                        left += 1
    assert read > 30
    assert left > 20


def leaves(chain: Chain, case: Case, outcome: RouteOutcome, entry: Reading) -> bool:
    """Whether its copy reads as the exit of this entry. An expiration of 0 takes a millisecond."""
    copy = Copy(case.exchange, case.routing_key, case.headers, case.expiration)
    left = leave(chain, case.definitions, outcome, copy)
    out = Reader(chain).read(left) if left else None
    return out is not None and out.phase == "exit" and abs(out.delay - entry.delay) <= MILLISECOND


def test_an_exit_through_an_internal_exchange_has_its_destination() -> None:
    chain = only(
        Exchange("done", internal=True),
        Queue("mail"),
        Binding("done", "mail", "order"),
        holding("w1", "done", "order", **TTL),
    )
    death = {"queue": "w1", "reason": "expired", "count": 1, "exchange": "", "routing-keys": ["w1"]}
    left = Reader(chain).read(Copy("done", "order", {"x-death": [death]}))
    assert left is not None
    assert (left.phase, left.destination) == ("exit", "mail")


def test_cc_keys_that_stay_in_a_dead_letter_route_it_no_more() -> None:
    """From 4.0 on they stay although the delay queue has a routing key; it is no entry again."""
    chain = only(
        *MAIL, Exchange("wait"), Binding("wait", "w1", "w1"), holding("w1", "done", "mail", **TTL)
    )
    death = {"queue": "w1", "reason": "expired", "count": 1, "exchange": "wait"}
    headers = {"CC": ["w1"], "x-death": [{**death, "routing-keys": ["mail", "w1"]}]}
    by_name = only(*MAIL, holding("w1", "", "mail", **TTL))
    for found, exchange in ((chain, "done"), (by_name, "")):
        left = Reader(found).read(Copy(exchange, "mail", headers))
        assert left is not None
        assert (left.phase, left.destination, left.delay) == ("exit", "mail", SECOND)


def test_a_stored_chain_reads_what_the_found_one_reads() -> None:
    for seed in range(200):
        case = make_case(Random(seed))
        copy = Copy(case.exchange, case.routing_key, case.headers, case.expiration)
        for chain in find_chains(case.definitions):
            again = make_chain(chain.name, chain.queues, chain.definitions)
            assert (again.queues, again.exits, again.links) == (
                chain.queues,
                chain.exits,
                chain.links,
            )
            assert Reader(again).read(copy) == Reader(chain).read(copy)


def test_a_chain_of_which_taps_would_see_a_part_is_observed_by_the_firehose_alone() -> None:
    """A tap of a part made the list complete without the rest, and the rest overdue for ever."""
    bound, named = Binding("later", "w1", "a"), holding("w2", "", "mail", **TTL)
    first = holding("w1", "done", "mail", **TTL)
    whole = only(*MAIL, bound, first)
    assert [tap.phase for tap in place_taps(whole)] == ["entry", "exit"]
    assert not describe_observation(whole)
    part = only(*MAIL, bound, first, named)
    assert place_taps(part) == ()
    not_observed, unmeasured = describe_observation(part)
    assert "“w2”" in not_observed
    assert "they pass the default exchange" in unmeasured


def test_taps_see_every_way_to_a_destination_or_none() -> None:
    """What left by a second exchange stayed on the list, overdue for ever."""
    behind: tuple[BrokerObject, ...] = (
        *MAIL,
        Exchange("second"),
        Queue("audit"),
        Binding("later", "w1", "mail"),
        Binding("later", "w1", "other"),
        Binding("second", "audit", "other"),
        holding("w1", "done", **TTL),
    )
    chain = only(*behind, Binding("done", "second", "other", destination_is_queue=False))
    assert chain.destinations == ("audit", "mail")
    exits = [(tap.exchange, tap.routing_key) for tap in place_taps(chain) if tap.phase == "exit"]
    assert sorted(exits) == [("done", "mail"), ("done", "other")]
    assert not describe_observation(chain)
    unrouted = Exchange("done", arguments=Arguments({"alternate-exchange": "second"}))
    chain = only(*(one for one in behind if one != Exchange("done")), unrouted)
    assert chain.destinations == ("audit", "mail")
    assert [tap.phase for tap in place_taps(chain)] == ["entry", "entry"]
    assert "no binding of their exchange" in describe_observation(chain)[0]


def test_a_delay_queue_that_only_another_expires_into_needs_no_tap_of_its_own() -> None:
    chain = only(
        *MAIL,
        Binding("later", "w1", "a"),
        holding("w1", "", "w2", **TTL),
        holding("w2", "done", "mail", **TTL),
    )
    assert [tap.phase for tap in place_taps(chain)] == ["entry", "exit"]
