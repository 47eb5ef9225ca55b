"""Random vhosts with a finding about a chain, and the message that shows what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from tests.real_broker.proof.case import Case
from tests.real_broker.proof.gather import is_decided
from tests.real_broker.proof.run import Run
from tests.real_broker.proof.strategies import make_case
from tests.topology.builders import a_snapshot
from topology.definitions import Queue
from topology.findings.context import Context
from topology.findings.find import find
from topology.findings.hit import Evidence
from topology.routing.context import Consumer

KEY = "x-dead-letter-routing-key"
MOST_TRIES = 40


@dataclass(frozen=True)
class Claim:
    """What a finding says of a queue, and a case whose message dies there.

    `copies_arrive`: the finding says that other copies of the message are not lost.
    """

    rule: str
    queue: str
    case: Case
    copies_arrive: bool = False

    def named(self, prefix: str) -> Claim:
        case = replace(self.case, exchange=self.queue).named(prefix)
        return replace(self, queue=case.exchange, case=replace(case, exchange=""))


def is_lost(name: str, claim: Claim, played: Run) -> bool:
    return not _taken(name, played) and not played.left.get(claim.queue)


def is_cut(name: str, claim: Claim, played: Run) -> bool:
    """The walk that the broker agreed to drops a copy in the ring; others come or do not."""
    is_dropped = any(end.cause == "cycle" for end in played.walks[name].outcomes)
    return is_dropped and bool(_taken(name, played)) == claim.copies_arrive


def is_held(name: str, claim: Claim, played: Run) -> bool:
    return not _taken(name, played) and played.left.get(claim.queue) == 1


def is_duplicated(name: str, claim: Claim, played: Run) -> bool:
    return max(_taken(name, played).values(), default=0) > 1


def comes_back(name: str, claim: Claim, played: Run) -> bool:
    return played.seen.deliveries[claim.queue] > 1


# Rule -> what a broker does with the message.
CLAIMS: Mapping[str, Callable[[str, Claim, Run], bool]] = {
    "F01": is_lost,
    "F02": is_lost,
    "F03": is_lost,
    "F04": is_cut,
    "F15": is_held,
    "F17": is_duplicated,
    "F23": comes_back,
    "F26": is_lost,
    "F27": comes_back,
}


def _taken(name: str, played: Run) -> Counter[str]:
    return Counter(
        queue for queue, taken in played.seen.taken.items() for body, _ in taken if body == name
    )


def gather_claims(number: int, version: str) -> list[Claim]:
    """One claim of each of so many random vhosts, of the rule that has the fewest so far."""
    found: list[Claim] = []
    counts: Counter[str] = Counter()
    for _ in range(MOST_TRIES * number):
        claims = list(_claims(make_case(Random()), version))
        if claims:
            chosen = min(claims, key=lambda claim: counts[claim.rule])
            counts[chosen.rule] += 1
            found.append(chosen.named(f"c{len(found)}-"))
            if len(found) == number:
                return found
    raise AssertionError(f"only {len(found)} of {number} vhosts have a finding")


def _claims(random: Case, version: str) -> Iterator[Claim]:
    snapshot = a_snapshot(random.definitions, version=version)
    context = Context(snapshot)
    for one in find(snapshot):
        for evidence in one.evidence if one.rule.id in CLAIMS else ():
            queue = random.definitions.get(evidence.object)
            if isinstance(queue, Queue) and _is_told(one.rule.id, queue, context):
                case = _dies(random, queue, evidence)
                if is_decided(case, case.walked(random.definitions, context.version)):
                    copies_arrive = "one copy of" in evidence.sentence
                    yield Claim(one.rule.id, queue.name, case, copies_arrive)


def _is_told(rule: str, queue: Queue, context: Context) -> bool:
    """Whether the finding says how the message dies, and it dies with the finding's key.

    What stuck and duplicated messages died of is not said, and a headers exchange may tell
    reasons apart.
    """
    if rule in ("F15", "F17") and len(context.reasons(queue)) > 1:
        return False
    return rule in ("F01", "F03", "F26") or KEY in queue.arguments


def _dies(random: Case, queue: Queue, evidence: Evidence) -> Case:
    """A message that dies in this queue; the other queues are consumed where nothing expires."""
    consumers = {
        one.name: Consumer("acks")
        for one in random.definitions.queues
        if one.message_ttl_ms is None
    }
    is_crash = (
        "over the delivery limit" in evidence.sentence and "rejected" not in evidence.sentence
    )
    if evidence.argument == "x-delivery-limit" or is_crash:
        consumers[queue.name] = Consumer("crashes")
    elif queue.message_ttl_ms is None:
        consumers[queue.name] = Consumer("rejects", 1)
    return Case(random.definitions, "", queue.name, consumers=consumers)
