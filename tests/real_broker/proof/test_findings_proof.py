"""What a finding calls lost, stuck, looping or duplicated is what each broker does."""

from __future__ import annotations

from collections import Counter

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, every_generation
from tests.real_broker.proof.findings import CLAIMS, gather_claims
from tests.real_broker.proof.named import version_of
from tests.real_broker.proof.run import run

pytestmark = every_generation

VHOSTS = 30


def test_findings_of_random_vhosts_are_what_the_broker_does(
    broker_node: PrivateNode, vhost: Vhost, capsys: pytest.CaptureFixture[str]
) -> None:
    prove(broker_node, vhost, capsys)


@pytest.mark.long
@pytest.mark.parametrize("batch", range(300 // VHOSTS))
def test_findings_of_three_hundred_random_vhosts_are_what_the_broker_does(
    broker_node: PrivateNode, vhost: Vhost, capsys: pytest.CaptureFixture[str], batch: int
) -> None:
    prove(broker_node, vhost, capsys)


def prove(node: PrivateNode, vhost: Vhost, capsys: pytest.CaptureFixture[str]) -> None:
    """Send a message to each claim's queue; print, past pytest's capture, what was claimed."""
    version = ".".join(map(str, version_of(vhost)))
    claims = {f"c{n}": claim for n, claim in enumerate(gather_claims(VHOSTS, version))}
    played = run(node, vhost, {name: claim.case for name, claim in claims.items()})
    counts = Counter(claim.rule for claim in claims.values())
    with capsys.disabled():
        print(f"\nRabbitMQ {version}: {dict(sorted(counts.items()))}")
    assert not played.disagreements, "\n\n".join(map(str, played.disagreements[:3]))
    wrong = [
        f"{claim.rule} about {claim.queue}: {sorted(claim.case.definitions.queues, key=str)}"
        for name, claim in claims.items()
        if not CLAIMS[claim.rule](name, claim, played)
    ]
    assert not wrong, "\n\n".join(wrong[:3])
    assert len(counts) > 3
