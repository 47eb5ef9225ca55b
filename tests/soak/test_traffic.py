"""The soak's own traffic on a real broker: every message as often as its number says."""

from __future__ import annotations

from collections import Counter

import pytest

from delayboard.demo.script import DEMO_BROKER
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker
from tests.soak import desk, traffic
from tests.soak.parcels import parcel
from tests.soak.traffic import Traffic, message_id, number_of


def test_the_number_of_a_message_is_in_its_id() -> None:
    assert number_of(message_id(12)) == 12
    with pytest.raises(ValueError, match="invalid literal"):
        number_of("another's")


@pytest.mark.django_db(transaction=True)
def test_each_message_is_consumed_as_often_as_its_number_says(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "MESSAGES_PER_SECOND", 100.0)
    monkeypatch.setattr(desk, "DELAY", "200ms")
    make_broker(vhost, name=DEMO_BROKER)
    desk.prepare()
    with Traffic(address_of(vhost)) as running:
        eventually(lambda: len(running.ledger.sent) >= 40, "forty were sent")
        running.finish()
        eventually(lambda: running.ledger.outstanding == 0, "everything came")
    sent = running.ledger.sent
    assert sent == list(range(len(sent)))
    assert Counter(running.ledger.consumed) == {n: parcel(n).deliveries for n in sent}
    assert Counter(running.ledger.parked) == {n: 1 for n in sent if parcel(n).is_parked}
    assert (running.ledger.uncertain, running.failures) == ([], [])


@pytest.mark.django_db(transaction=True)
def test_traffic_on_a_queue_that_is_not_there_says_so_and_can_be_ended(vhost: Vhost) -> None:
    with Traffic(address_of(vhost)) as running:
        eventually(lambda: len(running.failures) >= 2, "both parts have failed")
        running.finish()
    assert any("soak" in why for why in running.failures)
    assert running.ledger.sent == []
