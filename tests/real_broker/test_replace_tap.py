"""A stream tap of an earlier version: the recorder replaces it and reads it to its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest
from django.conf import settings
from django.db import connection

from analytics.models import Gap, Recording, ScheduledMessage
from analytics.recorder import retired_taps
from analytics.recorder.record import record
from tests.analytics.builders import follow_log, logged
from tests.brokers import NEWEST, Vhost
from tests.builders import address_of, applied_pair, eventually, running
from tests.publishing import publisher
from tests.real_broker.test_decimal_headers import DECIMAL
from topology.broker.errors import NotFound, Unreachable
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.message import Publish
from topology.models import AuditEntry, Topology
from topology.operations import provision
from topology.operations.provision import check, remove
from topology.operations.replace_tap import read_taps, replace_tap

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.generations(NEWEST, only=True)]
STREAM, CLASSIC = "delayboard.tap.orders", "delayboard.tap.orders.classic"


@pytest.fixture(autouse=True)
def _soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired_taps, "SILENCE_SECONDS", 1.0)


@pytest.fixture
def topology(vhost: Vhost, event_log: Path, monkeypatch: pytest.MonkeyPatch) -> Topology:
    with monkeypatch.context() as patched:
        patched.setattr(provision, "safest_tap", lambda *_: "stream")
        return applied_pair(vhost, delay="1h", tap_type="stream")


def publish(vhost: Vhost, first: int, last: int) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for number in range(first, last + 1):
            stated = build_properties(message_id=f"m{number}", delivery_mode=2)
            channel.publish(Publish("orders-retry", "orders", stated, b"{}"))


def keep_recording(topology: Topology) -> Callable[[Event], None]:
    """As the worker does: again after each end."""

    def run(stop: Event) -> None:
        while not stop.is_set():
            try:
                record(topology.pk, stop=stop, beat=lambda counters: None)
            except (NotFound, OSError):
                stop.wait(0.1)
            finally:
                connection.close()

    return run


def all_recorded(topology: Topology, number: int) -> None:
    """Every message once in the index, in the log once but for marked repeats; the stream gone."""

    def is_done() -> bool:
        follow_log(settings.EVENT_LOG)
        topology.refresh_from_db()
        is_gone = not topology.retired_tap and not read_taps(topology)
        return is_gone and ScheduledMessage.objects.count() >= number

    eventually(is_done, "all is recorded and the stream is deleted")
    unmarked = Counter(e.message_id for e in logged(settings.EVENT_LOG) if not e.redelivered)
    everything = {event.message_id for event in logged(settings.EVENT_LOG)}
    assert everything == {f"m{n}" for n in range(number)}
    assert set(unmarked.values()) <= {1}
    rows = Counter(ScheduledMessage.objects.values_list("message_id", flat=True))
    assert rows == dict.fromkeys(everything, 1)


def names_of_taps(vhost: Vhost) -> dict[str, str]:
    with Management(address_of(vhost)) as management:
        found = management.queues()
    return {queue["name"]: queue["type"] for queue in found if "tap" in queue["name"]}


@pytest.mark.usefixtures("least_account")
def test_the_recorder_replaces_a_stream_tap_while_messages_pass(
    vhost: Vhost, topology: Topology
) -> None:
    """Unread copies of the stream are read first, those in both taps are counted once."""
    publish(vhost, 0, 19)
    numbers = [20]

    def go_on(stop: Event) -> None:
        with publisher(address_of(vhost), "test") as channel:
            while not stop.is_set():
                stated = build_properties(message_id=f"m{numbers[0]}", delivery_mode=2)
                channel.publish(Publish("orders-retry", "orders", stated, b"{}"))
                numbers[0] += 1

    def is_replaced() -> bool:
        topology.refresh_from_db()
        return topology.tap_type == "classic"

    with running(keep_recording(topology)):
        with running(go_on):
            eventually(is_replaced, "the recorder replaces the stream")
            after = numbers[0]
            eventually(lambda: numbers[0] > after + 40, "messages pass")
        all_recorded(topology, numbers[0])
    assert topology.tap_queue == CLASSIC
    assert names_of_taps(vhost) == {CLASSIC: "classic"}
    assert not Gap.objects.exists()
    assert check(None, topology).holds
    assert {e[1] for e in topology.owned if e[0] == "queue"} == {"orders", "orders-retry", CLASSIC}
    assert AuditEntry.objects.filter(action="tap replaced").exists()
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("orders-retry", "orders", DECIMAL, b"does no harm now"))
    remove(None, topology, typed_name=topology.name)
    assert names_of_taps(vhost) == {}


def read_from(topology: Topology, offset: int) -> list[str | None]:
    """The messages that are recorded of a stream of which an earlier version read so much."""
    read_at = datetime.now(UTC) - timedelta(hours=1)
    Recording.objects.create(topology=topology, read_at=read_at, offset=offset)

    def is_done() -> bool:
        topology.refresh_from_db()
        is_read = topology.tap_type == "classic" and not topology.retired_tap
        return is_read and not read_taps(topology)

    with running(keep_recording(topology)):
        eventually(is_done, "the stream is read and deleted")
    return [event.message_id for event in logged(settings.EVENT_LOG)]


@pytest.mark.parametrize("offset", [4, 9])
def test_only_what_an_earlier_version_did_not_read_is_read(
    vhost: Vhost, topology: Topology, offset: int
) -> None:
    publish(vhost, 0, 9)
    assert read_from(topology, offset) == [f"m{number}" for number in range(offset + 1, 10)]
    assert not Gap.objects.exists()
    assert Recording.objects.get().offset == -1


def test_a_stream_that_ends_before_its_position_is_another_one_and_leaves_a_gap(
    vhost: Vhost, topology: Topology
) -> None:
    publish(vhost, 0, 4)
    assert read_from(topology, 100) == [f"m{number}" for number in range(5)]
    (gap,) = Gap.objects.all()
    assert "was recreated or truncated" in gap.why
    assert gap.until_at - gap.from_at > timedelta(minutes=59)


def test_a_change_that_the_broker_broke_off_is_completed_by_the_same_button(
    vhost: Vhost, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(vhost, 0, 4)

    def fail(*_: object) -> None:
        raise Unreachable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(Management, "unbind", fail)
        with pytest.raises(Unreachable):
            replace_tap(None, topology)
    topology.refresh_from_db()
    assert topology.tap_type == "stream"
    publish(vhost, 5, 9)
    replace_tap(None, topology)
    publish(vhost, 10, 14)
    with running(keep_recording(topology)):
        all_recorded(topology, 15)
    assert not Gap.objects.exists()


def test_a_recorder_that_dies_after_the_last_copy_repeats_none_and_deletes_the_stream_later(
    vhost: Vhost, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(vhost, 0, 4)
    replace_tap(None, topology)
    publish(vhost, 5, 9)

    def die(*_: object) -> None:
        raise Unreachable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(retired_taps, "delete_read", die)
        with pytest.raises(Unreachable):
            record(topology.pk, stop=Event(), beat=lambda counters: None)
    topology.refresh_from_db()
    assert (topology.retired_tap, read_taps(topology)) == ("", [STREAM])
    with running(keep_recording(topology)):
        all_recorded(topology, 10)
    assert names_of_taps(vhost) == {CLASSIC: "classic"}


def test_a_stream_that_somebody_deletes_before_it_is_read_leaves_a_gap(
    vhost: Vhost, topology: Topology
) -> None:
    publish(vhost, 0, 4)
    replace_tap(None, topology)
    publish(vhost, 0, 4)
    began = time.time()
    with Management(address_of(vhost)) as management:
        management.delete_queue(STREAM, only_if_empty=False)
    with running(keep_recording(topology)):
        all_recorded(topology, 5)
    (gap,) = Gap.objects.all()
    assert gap.why == f"The tap “{STREAM}” was deleted before the recorder read it completely."
    assert gap.from_at.timestamp() <= began <= gap.until_at.timestamp()
    assert Recording.objects.get().lost_since is None
