"""RabbitMQ forgets the firehose when it restarts; its recorder puts it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User

from analytics.models import Firehose, Gap
from analytics.recorder import firehose_switch as firehose
from analytics.recorder import record_firehose as firehose_watch
from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost
from tests.builders import eventually, make_broker
from tests.real_broker.holding import foreign, hold, holds, is_tracing, recording, seen
from tests.real_broker.restarting import restart

pytestmark = pytest.mark.django_db(transaction=True)


def test_after_a_restart_of_the_broker_it_is_on_again_and_the_gap_is_told(
    broker_node: PrivateNode, vhost: Vhost, event_log: Path
) -> None:
    admin = User.objects.create_superuser("ada", password="a long enough password")
    broker = make_broker(vhost)
    topology = holds(broker)
    row = firehose.switch_on(admin, broker)
    with recording(broker):
        with foreign(vhost.amqp_url) as channel:
            hold(channel, "", "before", 60_000)
        eventually(lambda: seen(event_log, message_id="before"), "it is recorded")
        restart(broker_node)
        assert firehose.read_state(broker, row).error == ""
        eventually(lambda: is_tracing(broker_node, vhost.name), "it is on again", seconds=60)
        (gap,) = eventually(lambda: list(Gap.objects.all()), "the gap is written down")
        assert (gap.topology, gap.why) == (topology, firehose_watch.NOT_COPYING)
        assert gap.until_at > gap.from_at
        with foreign(vhost.amqp_url) as channel:
            hold(channel, "", "after", 60_000)
        eventually(lambda: seen(event_log, message_id="after"), "it is recorded again")
    row = Firehose.objects.get()
    assert row.lost_since is None
    assert row.read_at is not None
    assert row.read_at > gap.from_at
