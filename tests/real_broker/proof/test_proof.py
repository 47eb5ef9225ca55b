"""On each real broker random messages end where the walk says, none earlier than it says."""

from __future__ import annotations

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, every_generation
from tests.real_broker.proof.gather import SHARES, coverage, gather
from tests.real_broker.proof.run import run

pytestmark = every_generation

CASES = 100


def test_random_messages_end_where_the_walk_says(
    broker_node: PrivateNode, vhost: Vhost, capsys: pytest.CaptureFixture[str]
) -> None:
    prove(broker_node, vhost, capsys)


@pytest.mark.long
@pytest.mark.parametrize("batch", range(5000 // CASES))
def test_five_thousand_random_messages_end_where_the_walk_says(
    broker_node: PrivateNode, vhost: Vhost, capsys: pytest.CaptureFixture[str], batch: int
) -> None:
    prove(broker_node, vhost, capsys)


def prove(node: PrivateNode, vhost: Vhost, capsys: pytest.CaptureFixture[str]) -> None:
    """Run so many cases at once; print, past pytest's capture, what they covered."""
    cases = {f"c{number}": case for number, case in enumerate(gather(CASES))}
    played = run(node, vhost, cases)
    counted = coverage([(case, played.walks[name]) for name, case in cases.items()])
    covered = ", ".join(f"{feature} {number}" for feature, number in counted.most_common())
    seconds = " and ".join(f"{part:.0f} s" for part in played.seconds)
    with capsys.disabled():
        print(
            f"\nRabbitMQ {played.version}: {len(cases)} cases, {len(played.disagreements)} "
            f"disagreements, at most {played.most_late * 1000:.0f} ms late; {seconds} to declare "
            f"and to run; {covered}"
        )
    assert all(counted[feature] >= share * len(cases) for feature, share in SHARES.items())
    assert not played.disagreements, "\n\n".join(map(str, played.disagreements[:5]))
