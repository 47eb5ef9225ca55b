"""Queues that a client declares for each delay: those of other delays are known by their names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue
from tests.topology.structure.test_library_shapes import LARAVEL, SYMFONY
from topology.definitions import Binding, Definitions
from topology.patterns.chain.params import claim
from topology.patterns.chain.pattern import delay_chain
from topology.structure.chain import Chain
from topology.structure.copies import Copy
from topology.structure.find_chains import find_chains
from topology.structure.reading import Reader
from topology.structure.taps import describe_observation, place_taps

SEVEN = timedelta(seconds=7)


def chain_of(shape: Any) -> Chain:
    (chain,) = find_chains(Definitions.of(shape[0]))
    return chain


@pytest.mark.parametrize(
    ("shape", "entry", "exit_", "destination"),
    [
        (LARAVEL, ("", "default.delay.7000"), ("", "default"), "default"),
        (SYMFONY, ("delays", "delay_messages__7000_delay"), ("messages", ""), "messages"),
        (SYMFONY, ("delays", "delay_messages__7000_retry"), ("", "messages"), "messages"),
    ],
)
def test_a_delay_that_is_new_is_read_by_the_name_of_its_queue(
    shape: Any, entry: tuple[str, str], exit_: tuple[str, str], destination: str
) -> None:
    reader = Reader(chain_of(shape))
    entered = reader.read(Copy(*entry, {}))
    assert entered is not None
    assert (entered.phase, entered.queue, entered.delay) == ("entry", entry[1], SEVEN)
    assert entered.destination == destination
    death = {"queue": entry[1], "reason": "expired", "count": 1}
    death |= {"exchange": entry[0], "routing-keys": [entry[1]]}
    left = reader.read(Copy(*exit_, {"x-death": [death]}))
    assert left is not None
    assert (left.phase, left.delay, left.destination) == ("exit", SEVEN, destination)


@pytest.mark.parametrize(
    "name",
    ["default.delay.", "default.delay.soon", "other.delay.7000", "default.delay.9" + "9" * 11],
)
def test_the_name_of_something_else_is_none_of_it(name: str) -> None:
    assert Reader(chain_of(LARAVEL)).read(Copy("", name, {})) is None


def test_a_queue_that_does_not_come_and_go_says_nothing_of_others() -> None:
    lasting = [a_queue("mail.delay.5000", ttl=5000, dlx="", key="mail"), a_queue("mail")]
    (chain,) = find_chains(Definitions.of(lasting))
    assert Reader(chain).read(Copy("", "mail.delay.7000", {})) is None


def test_no_tap_is_bound_by_the_names_of_some_queues() -> None:
    """A tap has the keys of the queues that exist; the next delay would pass it."""
    chain = chain_of(SYMFONY)
    assert [tap.phase for tap in place_taps(chain)] == []
    assert "“delay_messages__1000_retry” for each delay" in describe_observation(chain)[0]


def test_what_was_declared_since_is_a_member() -> None:
    found = Definitions.of(LARAVEL[0])
    params = claim(chain_of(LARAVEL), found)
    new = a_queue("default.delay.7000", ttl=7000, dlx="", key="default", x_expires=14_000)
    other = a_queue("default.delay.8000", ttl=8000, dlx="", key="others", x_expires=16_000)
    later = found | Definitions.of([new, other, Binding("x", new.name, "k")])
    assert delay_chain.members(params, later) == [new]
    waiting = delay_chain.delay_queues(params, later.queues)
    assert {queue.name for queue in waiting} == {*params.queues, new.name}
