"""Random cases, those that the brokers can decide, and what they cover."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random

from tests.real_broker.proof.case import Case
from tests.real_broker.proof.strategies import make_case
from topology.definitions import Definitions
from topology.routing.outcome import Walk

VERSIONS = ((3, 10, 8), (4, 0, 5), (4, 3, 6))
LONGEST = timedelta(seconds=2)
MOST_OUTCOMES = 12
MOST_TRIES = 20
# At least so many of the cases have it, on every version.
SHARES = {"three hops": 0.4, "cut rings": 0.15, "rejected": 0.25, "delivery limit": 0.12}


def gather(number: int) -> list[Case]:
    """So many cases, chosen at random until each of SHARES is reached."""
    found: list[Case] = []
    needed = Counter({feature: math.ceil(share * number) for feature, share in SHARES.items()})
    for _ in range(MOST_TRIES * number):
        case = make_case(Random())
        walks = _decided(case)
        if walks is None:
            continue
        features = set.intersection(*(_features(case, walked) for walked in walks))
        still = needed - Counter(features)
        # The rest of the cases suffices when each has one of the features.
        if still.total() < number - len(found):
            needed = still
            found.append(case.named(f"c{len(found)}-"))
            if len(found) == number:
                return found
    raise AssertionError(f"only {len(found)} of {number} cases")


def _decided(case: Case) -> list[Walk] | None:
    """The walk on each version, if every one ends it soon, in few copies and without a race."""
    walks = []
    for version in VERSIONS:
        walks.append(case.walked(case.definitions, version))
        if not is_decided(case, walks[-1]):
            return None
    return walks


def is_decided(case: Case, walked: Walk) -> bool:
    crashing = {name for name, consumer in case.consumers.items() if consumer.does == "crashes"}
    races = case.expiration is not None and any(hop.queue in crashing for hop in walked.hops)
    return (
        walked.is_routed
        and not races
        and len(walked.outcomes) <= MOST_OUTCOMES
        and all(o.ending != "uncertain" and o.after <= LONGEST for o in walked.outcomes)
        and not any("forever through" in outcome.why for outcome in walked.outcomes)
    )


def coverage(walks: Sequence[tuple[Case, Walk]]) -> Counter[str]:
    """How many cases have what."""
    return Counter(name for case, walked in walks for name in _features(case, walked))


def _features(case: Case, walked: Walk) -> set[str]:
    deaths = {hop.why.split(" ")[0] for hop in walked.hops}
    whys = " ".join(outcome.why for outcome in walked.outcomes)
    found = {
        "three hops": any(len(outcome.hops) >= 3 for outcome in walked.outcomes),
        "cut rings": "no consumer rejected it since" in whys,
        "laps": any(_laps(outcome.hops) for outcome in walked.outcomes),
        "rejected": "rejected" in deaths or "rejects the message" in whys,
        "delivery limit": "over" in deaths or "exceeds the delivery limit" in whys,
        "stuck": any(outcome.ending == "stuck" for outcome in walked.outcomes),
        "dropped": any(outcome.ending == "dropped" for outcome in walked.outcomes),
        "several copies": len(walked.outcomes) > 1,
        "published x-death": "x-death" in case.headers,
        "CC or BCC": bool({"CC", "BCC"} & set(case.headers)),
        "expiration": case.expiration is not None,
        "quorum": any(_type(case.definitions, hop.queue) == "quorum" for hop in walked.hops),
    }
    types = {
        exchange.type
        for hop in walked.hops
        if (exchange := case.definitions.exchange(hop.exchange)) is not None
    }
    return {name for name, is_there in found.items() if is_there} | types


def _laps(hops: Sequence[object]) -> bool:
    names = [getattr(hop, "queue", "") for hop in hops]
    return len(names) > len(set(names))


def _type(definitions: Definitions, queue: str) -> str:
    found = definitions.queue(queue)
    return found.type if found else ""
