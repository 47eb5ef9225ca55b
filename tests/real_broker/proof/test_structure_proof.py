"""What structure says of a publish is what each broker does: where it goes, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, every_generation
from tests.real_broker.proof.case import Case
from tests.real_broker.proof.gather import VERSIONS, is_decided
from tests.real_broker.proof.run import Run, run
from tests.real_broker.proof.strategies import make_case
from topology.routing.context import Consumer
from topology.structure.chain import Chain
from topology.structure.copies import Copy, Reading
from topology.structure.find_chains import find_chains
from topology.structure.reading import Reader

pytestmark = every_generation

VHOSTS = 12
# A consumer of a busy machine; and RabbitMQ counts in whole milliseconds, at each of the hops.
LATE_SECONDS, EARLY_SECONDS = 5.0, 0.012
# An expiration of 0 takes one.
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Claim:
    """A chain of a random vhost, a publish that enters it, and what structure reads of that."""

    chain: Chain
    case: Case
    entry: Reading


def gather_claims(number: int) -> list[Claim]:
    found = _list_claims()
    return [next(found) for _ in range(number)]


def _list_claims() -> Iterator[Claim]:
    """What is no delay queue is consumed. A publish with deaths of before is no first trip, and
    structure reads by no version: what BCC and cycles do differs before 4.0."""
    number = 0
    while True:
        case = make_case(Random()).named(f"c{number}-")
        chains = [chain for chain in find_chains(case.definitions) if not chain.is_native]
        delays = {name for chain in chains for name in chain.queues}
        others = {queue.name for queue in case.definitions.queues} - delays
        case = replace(case, consumers={name: Consumer("acks") for name in others})
        walks = [case.walked(case.definitions, version) for version in VERSIONS]
        if "x-death" in case.headers or not all(is_decided(case, walked) for walked in walks):
            continue
        copy = Copy(case.exchange, case.routing_key, case.headers, case.expiration)
        for chain in chains:
            entry = Reader(chain).read(copy)
            arrives = entry is not None and all(
                (entry.destination, entry.delay)
                in [(one.queue, one.after) for one in walked.delivered]
                for walked in walks
            )
            if entry is not None and entry.phase == "entry" and arrives:
                number += 1
                yield Claim(chain, case, entry)
                break


def test_a_publish_of_a_random_vhost_goes_where_and_when_structure_says(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    prove(broker_node, vhost, VHOSTS)


@pytest.mark.long
@pytest.mark.parametrize("batch", range(3))
def test_publishes_of_three_hundred_random_vhosts_go_where_and_when_structure_says(
    broker_node: PrivateNode, vhost: Vhost, batch: int
) -> None:
    prove(broker_node, vhost, 100)


def prove(node: PrivateNode, vhost: Vhost, number: int) -> None:
    claims = {f"m{n}": claim for n, claim in enumerate(gather_claims(number))}
    played = run(node, vhost, {name: claim.case for name, claim in claims.items()})
    wrong = [
        f"{name}: {claim.entry}\n{played.seen.copies}\n{claim.case}\n{claim.chain}"
        for name, claim in claims.items()
        if not _is_as_read(name, claim, played)
    ]
    assert not wrong, "\n\n".join(wrong[:3])


def _is_as_read(name: str, claim: Claim, played: Run) -> bool:
    """Whether a copy came to the destination when its delay was over, and reads as its exit."""
    queue = claim.entry.destination
    due = played.seen.published[name] + claim.entry.delay.total_seconds()
    taken = [at - due for body, at in played.seen.taken.get(queue, ()) if body == name]
    is_on_time = any(-EARLY_SECONDS <= late <= LATE_SECONDS for late in taken)
    exits = [Reader(claim.chain).read(copy) for copy in played.seen.copies[queue, name]]
    return is_on_time and any(
        one.phase == "exit" and abs(one.delay - claim.entry.delay) <= MILLISECOND
        for one in exits
        if one is not None
    )
