"""What a flood offers, and that a worker under one stays upright and catches up."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from statistics import median

import pika.frame
import pika.spec
import pytest
from pytest_django import Settings

from delayboard.demo.node import PrivateNode
from tests.brokers import SUITES, Vhost, every_generation
from tests.builders import address_of, applied_pair
from tests.faults.processes import environment, started
from tests.flood.counting import times_recorded
from tests.flood.generator import BURST, Flood, burst_pieces, message_id, number_of
from tests.flood.measured import Sample, samples

RATE = 20_000
WITH_STREAM_TAPS = [generation for generation in SUITES if generation != "3.10"]


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> Path:
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"


def test_a_burst_is_one_publish_after_the_other_with_numbers_of_its_own() -> None:
    frames = b"00000007".join(burst_pieces("orders-retry", "orders"))
    ids = [found.decode() for found in re.findall(rb"flood-\d+-\d+", frames)]
    kinds = Counter[str]()
    while frames:
        used, frame = pika.frame.decode_frame(frames)
        frames = frames[used:]
        if isinstance(frame, pika.frame.Method):
            assert isinstance(frame.method, pika.spec.Basic.Publish)
            assert (frame.method.exchange, frame.method.routing_key) == ("orders-retry", "orders")
        kinds[type(frame).__name__] += 1
    assert kinds == {"Method": BURST, "Header": BURST, "Body": BURST}
    assert ids == [message_id(7 * BURST + place) for place in range(BURST)]
    assert [number_of(name) for name in ids] == list(range(700, 800))


def under_flood(flood: Flood, node: PrivateNode, log: Path, *, patience: float) -> list[Sample]:
    with started("worker", variables=environment()) as worker:
        flood.start()
        seen = list(samples(flood, log, worker.pid, node.folder, patience=patience))
        flood.join()
    assert flood.error is None
    return seen


@pytest.mark.django_db(transaction=True)
@every_generation
def test_every_event_of_a_small_flood_is_recorded_once(
    vhost: Vhost, broker_node: PrivateNode, event_log: Path
) -> None:
    applied_pair(vhost, delay="1h")
    flood = Flood(address_of(vhost), "orders-retry", "orders", rate=2000, seconds=2)
    under_flood(flood, broker_node, event_log, patience=180)
    assert times_recorded(event_log, flood.sent) == {1: 4000}


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("broker_node", WITH_STREAM_TAPS, indirect=True, scope="session")
def test_the_recorder_catches_up_within_a_minute_of_20_000_a_second_for_a_minute(
    vhost: Vhost, broker_node: PrivateNode, event_log: Path
) -> None:
    applied_pair(vhost, delay="1h")
    flood = Flood(address_of(vhost), "orders-retry", "orders", RATE, seconds=60)
    seen = under_flood(flood, broker_node, event_log, patience=60)
    reported = "\n".join(map(str, seen))
    # How fast a small machine's broker takes it in is not ours to prove.
    assert flood.sent == RATE * 60, reported
    assert seen[-1].lag < 1, reported
    assert times_recorded(event_log, flood.sent) == {1: 60 * RATE}
    # A million events held back would be a gigabyte.
    third = len(seen) // 3
    first, last = seen[:third], seen[-third:]
    grown = median(s.memory for s in last) - median(s.memory for s in first)
    assert grown < 30, reported
