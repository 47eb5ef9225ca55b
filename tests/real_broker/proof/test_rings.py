"""Deaths, rings and times where the brokers differ: the walk says so, and they do it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, eventually
from tests.real_broker.proof.named import (
    ACKS,
    AT_LEAST_ONCE,
    case,
    ends,
    version_of,
)
from tests.real_broker.proof.play import declare
from tests.real_broker.proof.run import run
from tests.topology.builders import a_queue
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.routing.context import Consumer

pytestmark = every_generation


def test_a_retry_that_comes_by_its_delay_again_is_cut_before_4_0(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """3.10.8 turns the list of deaths round at each death, and overlooks the rejection in it."""
    ring = case(
        a_queue("delay", ttl=20, dlx="", key="work"),
        a_queue("work", dlx="", key="retry"),
        a_queue("retry", ttl=30, dlx="", key="delay"),
        work=Consumer("rejects", 1),
    )
    played = run(broker_node, vhost, {"ring": ring})
    lost = ("dropped", "retry")
    assert ends(played) == [lost if version_of(vhost) < (4, 0) else ("delivered", "work")]


def test_a_published_x_death_counts_before_4_0_only(broker_node: PrivateNode, vhost: Vhost) -> None:
    death = {
        "queue": "work",
        "reason": "expired",
        "count": 1,
        "exchange": "",
        "routing-keys": ["k"],
    }
    again = case(
        a_queue("delay", ttl=20, dlx="", key="work"),
        a_queue("work"),
        headers={"x-death": [death]},
        work=ACKS,
    )
    played = run(broker_node, vhost, {"again": again})
    lost = ("dropped", "delay")
    assert ends(played) == [lost if version_of(vhost) < (4, 0) else ("delivered", "work")]


def test_dead_letters_of_a_queue_into_itself_at_least_once_stay_besides_before_4_0(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    itself = case(a_queue("work", dlx="", **AT_LEAST_ONCE), work=Consumer("rejects", 2))
    played = run(broker_node, vhost, {"itself": itself})
    kept = [("stuck", "work")] * 2 if version_of(vhost) < (4, 0) else []
    assert ends(played) == [("delivered", "work"), *kept]


@pytest.mark.parametrize("type_", ["classic", "quorum"])
def test_a_time_of_nothing_ends_where_nobody_waits(
    broker_node: PrivateNode, vhost: Vhost, type_: str
) -> None:
    objects = [a_queue("hold", ttl=0, type=type_, dlx="", key="work"), a_queue("work", ttl=0)]
    at_once = case(*objects, work=ACKS)
    assert ends(run(broker_node, vhost, {"at once": at_once})) == [("delivered", "work")]


def test_of_argument_and_policy_the_shorter_time_and_the_arguments_key_count(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    policy = {"message-ttl": 30, "dead-letter-exchange": "gone", "dead-letter-routing-key": "gone"}
    body = {"pattern": "^hold$", "apply-to": "queues", "definition": policy}
    call_api(broker_node, "PUT", f"policies/{vhost.name}/both", body)
    both = case(a_queue("hold", ttl=60_000, dlx="", key="work"), a_queue("work"), work=ACKS)
    declare(broker_node, vhost, [both])
    with Management(address_of(vhost)) as management:

        def shown() -> bool:
            hold = observe(management).definitions.queue("hold")
            return hold is not None and hold.message_ttl_ms == 30

        eventually(shown, "the statistics show the policy of the queue hold")
    played = run(broker_node, vhost, {"both": both})
    assert ends(played) == [("delivered", "work")]
    assert played.walks["both"].outcomes[0].after == timedelta(milliseconds=30)
