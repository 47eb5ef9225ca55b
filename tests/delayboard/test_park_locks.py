"""Parking, discarding, restoring and cleaning at the same time: nobody waits in a circle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Thread

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from analytics.retention.rules import clean
from delayboard.dead_letters import discard
from delayboard.models import MessageGroup, ParkedMessage
from delayboard.retention.parked_rows import PARKED
from tests.builders import make_broker
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from topology.models import Broker

pytestmark = pytest.mark.both_databases

TIMES = 12
HEADERS = [deaths_header(a_death(queue=name)) for name in "abcdefgh"]


@pytest.mark.django_db(transaction=True)
def test_all_that_counts_parked_messages_goes_on_at_the_same_time(
    broker: Broker, user: User
) -> None:
    # So the body stays: who writes a message of one that goes must try again.
    parked(make_broker(name="Other"), a_message())
    # One after the other, so that their keys are not in the order of their fingerprints.
    for one in HEADERS:
        parked(broker, a_message(headers=one))
    later = timezone.now() + timedelta(days=31)
    actions: list[Callable[[], object]] = [
        lambda: parked(broker, *(a_message(headers=one) for one in HEADERS)),
        lambda: parked(broker, *(a_message(headers=one) for one in reversed(HEADERS))),
        lambda: discard.change_all(user, broker, discard.DISCARD),
        lambda: discard.change_all(user, broker, discard.RESTORE, query="state:any"),
        lambda: clean(PARKED, later),
    ]
    failed: list[BaseException] = []

    def run(action: Callable[[], object]) -> None:
        try:
            for _ in range(TIMES):
                action()
        except BaseException as error:
            failed.append(error)
        finally:
            connection.close()

    threads = [Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for group in MessageGroup.objects.filter(broker=broker):
        parked_messages = ParkedMessage.objects.filter(group=group)
        assert group.parked == parked_messages.filter(state="parked").count()
        assert group.discarded == parked_messages.filter(state="discarded").count()
