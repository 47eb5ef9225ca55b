"""What following and showing replays asks of the database: by its indexes, and no more."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delayboard.dead_letters.replay import outcome, seen_messages
from delayboard.live import subjects
from delayboard.models import BatchState
from tests.delayboard.builders import a_message, parked
from tests.delayboard.replay_rows import a_batch
from topology.models import Broker

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


# PostgreSQL scans what is small.
@pytest.mark.sqlite
def test_what_is_followed_is_found_by_its_index(broker: Broker) -> None:
    batch = a_batch(broker, parked(broker, a_message()), BatchState.RUNNING)
    batch.routes.update(after_ms=5)
    with CaptureQueriesContext(connection) as queries:
        seen_messages.read_open_items(batch, 0)
        list(outcome.find_died_open(batch))
    plans = []
    for query in queries.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plans.append(str(cursor.fetchall()))
    assert "items_to_follow" in plans[0]
    assert "items_that_died" in plans[1]


def test_a_live_page_does_not_read_what_was_chosen(broker: Broker) -> None:
    batch = a_batch(broker, state=BatchState.RUNNING)
    batch.parked_messages = list(range(1000))
    batch.save()
    with CaptureQueriesContext(connection) as queries:
        subject = subjects.find("replays", str(batch.pk), 1.0)
        assert subject is not None
        subject.read()
    assert not [query for query in queries.captured_queries if '"parked_messages"' in query["sql"]]
