"""Which queues a search of live messages covers, and that it ends in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analytics.search.query import Query
from delayboard.dead_letters.queues.candidates import candidates
from delayboard.dead_letters.search import live_queues
from delayboard.dead_letters.search.live_queues import OUT_OF_TIME, search_queues, select_queues
from delayboard.models import DeadLetterQueue
from tests.site.page_setup import know
from tests.topology.builders import a_queue
from topology.models import Broker
from topology.redaction import NOTHING
from topology.snapshot import QueueNumbers

pytestmark = pytest.mark.django_db


def test_only_queues_that_are_free_to_peek_are_searched(broker: Broker) -> None:
    costly = {"type": "quorum", "x_delivery_limit": 20}
    named = [a_queue("free.dlq"), a_queue("empty.dlq"), a_queue("costly.dlq", **costly)]
    others = [a_queue("plain"), a_queue("used.dlq"), a_queue("dismissed.dlq")]
    numbers = {queue.name: QueueNumbers(1, consumers=0) for queue in (*named, *others)}
    numbers |= {"empty.dlq": QueueNumbers(0), "used.dlq": QueueNumbers(1, consumers=1)}
    snapshot = replace(know(broker, *named, *others), numbers=numbers)
    for name, is_confirmed in (("used.dlq", True), ("dismissed.dlq", False)):
        DeadLetterQueue.objects.create(
            broker=broker, queue=name, is_confirmed=is_confirmed, decided_at=snapshot.taken_at
        )
    found = candidates(snapshot, set())
    free, rest = select_queues(broker, found, snapshot, "")
    assert (free, sorted(rest)) == (["free.dlq"], ["costly.dlq", "used.dlq"])
    assert select_queues(broker, found, snapshot, "COSTLY") == ([], ["costly.dlq"])


def test_a_search_that_takes_too_long_says_which_queues_are_left(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = know(broker, a_queue("a.dlq"), a_queue("b.dlq"))
    monkeypatch.setattr(live_queues, "SECONDS", 0)
    found = search_queues(broker, snapshot, ["a.dlq", "b.dlq"], Query(), NOTHING)
    assert [one.problem for one in found] == [OUT_OF_TIME, OUT_OF_TIME]
