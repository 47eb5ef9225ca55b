"""RabbitMQ forgets the firehose when it restarts; its recorder puts it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from analytics import firehose
from analytics.models import Firehose, Gap
from analytics.recorder import firehose_watch
from delayboard.demo.node import PrivateNode
from tests.brokers import NEWEST, Vhost, generations, root_of
from tests.builders import eventually, make_broker
from tests.real_broker.holding import foreign, hold, holds, is_tracing, recording, seen

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=generations(NEWEST))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateNode]:
    node = PrivateNode(
        tmp_path / "node", "restarted", statistics_interval_ms=1000, root=root_of(request.param)
    )
    node.start()
    yield node
    node.kill()


def test_after_a_restart_of_the_broker_it_is_on_again_and_the_gap_is_told(
    node: PrivateNode, event_log: Path
) -> None:
    admin = User.objects.create_superuser("ada", password="a long enough password")
    vhost = Vhost(node.amqp_url, node.management_url, "/", node.username, node.password)
    broker = make_broker(vhost)
    topology = holds(broker)
    row = firehose.switch_on(admin, broker)
    with recording(broker):
        with foreign(node.amqp_url) as channel:
            hold(channel, "", "before", 60_000)
        eventually(lambda: seen(event_log, message_id="before"), "it is recorded")
        node.stop()
        node.start()
        assert firehose.standing(broker, row).error == ""
        eventually(lambda: is_tracing(node, "%2F"), "it is on again", seconds=60)
        (gap,) = eventually(lambda: list(Gap.objects.all()), "the gap is written down")
        assert (gap.topology, gap.why) == (topology, firehose_watch.NOT_COPYING)
        assert gap.until_at > gap.from_at
        with foreign(node.amqp_url) as channel:
            hold(channel, "", "after", 60_000)
        eventually(lambda: seen(event_log, message_id="after"), "it is recorded again")
    row = Firehose.objects.get()
    assert row.lost_since is None
    assert row.read_at is not None
    assert row.read_at > gap.from_at
