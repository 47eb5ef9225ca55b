"""Killing the worker loses no copy of the firehose, and what is recorded twice is marked."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from pytest_django import Settings

from analytics.models import Gap
from analytics.recorder.firehose_switch import read_state, switch_on
from tests.brokers import Vhost, newest_generation
from tests.builders import eventually, make_broker, make_user
from tests.faults.forking import forked
from tests.real_broker.holding import foreign, hold, holds, seen
from topology.models import Role

pytestmark = pytest.mark.django_db(transaction=True)
MESSAGES = 400
KILLS = 3
AN_HOUR_MS = int(timedelta(hours=1).total_seconds() * 1000)


def hold_all(vhost: Vhost, names: list[str]) -> None:
    with foreign(vhost.amqp_url) as channel:
        for name in names:
            hold(channel, "", name, AN_HOUR_MS)


@newest_generation
def test_a_recorder_of_the_firehose_that_is_killed_loses_nothing(
    vhost: Vhost, settings: Settings, tmp_path: Path
) -> None:
    settings.EVENT_LOG = tmp_path / "log"
    settings.EVENT_LOG.mkdir()
    broker = make_broker(vhost)
    topology = holds(broker, delay_ms=AN_HOUR_MS)
    row = switch_on(make_user("ada", Role.ADMIN), broker)
    names = [f"m{number}" for number in range(MESSAGES)]

    def has_recorded(number: int) -> bool:
        events = seen(settings.EVENT_LOG, topology=topology.slug)
        return len({event.message_id for event in events}) >= number

    for kill_number in range(KILLS):
        share = names[kill_number :: KILLS + 1]
        known = len({e.message_id for e in seen(settings.EVENT_LOG, topology=topology.slug)})
        publishing = Thread(target=hold_all, args=(vhost, share))
        with forked("worker", "--only", "recorder"):
            publishing.start()
            goal = known + random.randint(1, len(share) * 3 // 4)
            eventually(partial(has_recorded, goal), "the recorder is at work")
        publishing.join()
    hold_all(vhost, names[KILLS :: KILLS + 1])
    with forked("worker", "--only", "recorder"):
        eventually(partial(has_recorded, MESSAGES), "every message is in the log")
    events = seen(settings.EVENT_LOG, topology=topology.slug)
    copies = Counter(event.message_id for event in events)
    repeated = {event.message_id for event in events if event.redelivered}
    assert set(copies) == set(names)
    assert {name for name, times in copies.items() if times > 1} <= repeated
    assert max(copies.values()) <= KILLS + 1
    assert not Gap.objects.exists()
    assert read_state(broker, row).is_copying
