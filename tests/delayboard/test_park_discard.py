"""Discarding and restoring: states, counters, facts, and what is frozen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from analytics import facts
from analytics.retention.rules import clean
from delayboard.dead_letters import discard
from delayboard.dead_letters.discard import DISCARD, RESTORE
from delayboard.dead_letters.parked import store
from delayboard.dead_letters.search import QueryError, index
from delayboard.dead_letters.search.index import begin, keep_up
from delayboard.models import MessageGroup, ParkedChange, ParkedMessage, ParkedState
from delayboard.retention.parked_rows import PARKED
from tests.builders import make_broker
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from topology import work
from topology.broker.properties.read import read_properties
from topology.message import Message
from topology.models import AuditEntry, Broker, Work, WorkState

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
OTHER = deaths_header(a_death(queue="elsewhere"))


def states() -> Counter[str]:
    return Counter(ParkedMessage.objects.values_list("state", flat=True))


def counts_are_true() -> bool:
    return all(
        group.parked == group.parked_messages.filter(state=ParkedState.PARKED).count()
        and group.discarded == group.parked_messages.filter(state=ParkedState.DISCARDED).count()
        for group in MessageGroup.objects.all()
    )


def kinds() -> Counter[str]:
    return Counter(event.kind for _, event in facts.oldest(1000))


def test_discarding_is_counted_stated_written_down_and_undone(broker: Broker, user: User) -> None:
    one, two, three = parked(broker, a_message(b"1"), a_message(b"2"), a_message(b"3", OTHER))
    assert discard.change_these(user, broker, DISCARD, [one.pk, three.pk, 10**12]) == 2
    assert states() == {"discarded": 2, "parked": 1}
    assert counts_are_true()
    one.refresh_from_db()
    assert one.state_by == user
    assert one.state_at > one.parked_at
    assert discard.change_these(user, broker, DISCARD, [one.pk]) == 0
    assert discard.change_these(user, broker, RESTORE, [one.pk, two.pk]) == 1
    assert counts_are_true()
    assert kinds() == {"discarded": 2, "restored": 1}
    reported = AuditEntry.objects.order_by("pk").values_list("action", "details__parked_messages")
    assert list(reported)[:2] == [
        ("parked messages discarded", 2),
        ("parked messages discarded", 0),
    ]


def test_a_fact_of_a_discard_is_the_same_as_of_the_parking(broker: Broker, user: User) -> None:
    """Also for properties that no stream keeps whole, where the body counts."""
    odd = b"\x20\x00\x00\x00\x00\x08\x01dD\x01\x00\x00\x00\x0f"
    message = Message("ex", "key", read_properties(odd), b"body", True)
    (parked_message,) = parked(broker, message)
    discard.change_these(user, broker, DISCARD, [parked_message.pk])
    facts.state(broker=broker, kind="parked", message=message, at=parked_message.parked_at)
    (_, one), (_, other) = facts.oldest(2)
    fields = ("content_id", "size_bytes", "headers_json", "redelivered", "deaths")
    assert [getattr(one, name) for name in fields] == [getattr(other, name) for name in fields]


def test_parked_messages_of_another_broker_are_left(broker: Broker, user: User) -> None:
    (parked_message,) = parked(make_broker(name="Other"), a_message())
    assert discard.change_these(user, broker, DISCARD, [parked_message.pk]) == 0
    assert states() == {"parked": 1}


def test_a_group_is_frozen_at_the_newest_that_was_seen(broker: Broker, user: User) -> None:
    first = parked(broker, a_message(b"1"), a_message(b"2"), a_message(b"3", OTHER))
    group = first[0].group
    parked(broker, a_message(b"later"))
    change = discard.change_all(user, broker, DISCARD, group=group, newest=first[-1].pk)
    assert (change.requested, change.changed, change.work) == (2, 2, None)
    assert states() == {"discarded": 2, "parked": 2}
    assert counts_are_true()


def test_what_matches_a_query_is_changed(broker: Broker, user: User) -> None:
    parked_messages = parked(broker, a_message(b"1"), a_message(b"2", OTHER))
    discard.change_all(user, broker, DISCARD, query=f"group:{parked_messages[1].group_id}")
    assert states() == {"discarded": 1, "parked": 1}


def test_many_are_left_to_the_worker_in_chunks(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discard, "AT_ONCE", 3)
    monkeypatch.setattr(discard, "CHUNK", 2)
    parked_messages = parked(broker, *(a_message(b"%d" % number) for number in range(7)))
    change = discard.change_all(user, broker, DISCARD, group=parked_messages[0].group)
    assert states() == {"parked": 7}
    doomed = work.claim((discard.KIND,), "doomed")
    assert doomed is not None
    passed: list[int] = []

    def die() -> None:
        passed.append(1)
        if len(passed) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.attempt(discard.run, doomed, stop=Event(), alive=die)
    assert states() == {"discarded": 4, "parked": 3}
    assert counts_are_true()
    doomed.leased_until_at = doomed.created_at
    doomed.save()
    claimed = work.claim((discard.KIND,), "next")
    assert claimed is not None
    work.attempt(discard.run, claimed, stop=Event())
    change.refresh_from_db()
    assert (change.changed, change.is_ended) == (7, True)
    assert states() == {"discarded": 7}
    assert counts_are_true()
    assert kinds() == {"discarded": 7}


def test_what_only_reading_can_count_is_not_counted(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discard, "AT_ONCE", 2)
    parked(broker, *(a_message(b"%d" % number, message_id=f"m{number}") for number in range(4)))
    change = discard.change_all(user, broker, DISCARD, query="died-at:<2h")
    assert (change.requested, change.work is None) == (None, False)
    claimed = work.claim((discard.KIND,), "worker")
    assert claimed is not None
    fitting = ParkedMessage.objects.filter(died_at__gte=change.created_at - timedelta(hours=2))
    number = fitting.count()
    work.attempt(discard.run, claimed, stop=Event())
    change.refresh_from_db()
    assert (change.requested, change.changed, change.is_ended) == (None, number, True)


def test_a_cancelled_change_changes_nothing_more(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discard, "AT_ONCE", 2)
    parked(broker, *(a_message(b'{"n": 1}' + b" " * place) for place in range(6)))
    change = discard.change_all(user, broker, DISCARD, query="reason:rejected")
    claimed = work.claim((discard.KIND,), "test")
    assert claimed is not None
    discard.cancel(user, change)
    work.attempt(discard.run, claimed, stop=Event())
    change.refresh_from_db()
    assert (change.requested, change.changed, change.is_ended) == (6, 0, True)


def test_parked_messages_that_no_search_finds_yet_are_indexed_first(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "STEP", 1)
    first = parked(broker, a_message(b"1", {"tenant": 7}))
    while keep_up(begin()):
        pass
    late = parked(broker, *(a_message(b"%d" % n, {"tenant": 7}) for n in (2, 3)))
    change = discard.change_all(user, broker, DISCARD, query="header.tenant:7", newest=late[-1].pk)
    assert (change.requested, states()) == (None, {"parked": 3})
    assert index.not_searchable(broker) == 2

    def die() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        did(change, alive=die)
    Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
    done = did(change)
    change.refresh_from_db()
    assert (done.state, done.error) == (WorkState.DONE, "")
    assert (change.requested, states()["discarded"]) == (None, len(first) + len(late))


def did(change: ParkedChange, *, alive: Callable[[], None] = lambda: None) -> Work:
    claimed = work.claim((discard.KIND,), "test")
    assert claimed is not None
    assert claimed.subject == change.pk
    work.attempt(discard.run, claimed, stop=Event(), alive=alive)
    claimed.refresh_from_db()
    return claimed


def test_ages_count_from_when_it_was_asked_for(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discard, "AT_ONCE", 0)
    old, young = parked(broker, a_message(b"1"), a_message(b"2"))
    began_at = timezone.now()
    ParkedMessage.objects.filter(pk=old.pk).update(parked_at=began_at - timedelta(hours=5))
    ParkedMessage.objects.filter(pk=young.pk).update(parked_at=began_at - timedelta(hours=2))
    change = discard.change_all(user, broker, DISCARD, query="parked:>1h")
    ParkedChange.objects.filter(pk=change.pk).update(created_at=began_at - timedelta(hours=3))
    claimed = work.claim((discard.KIND,), "worker")
    assert claimed is not None
    work.attempt(discard.run, claimed, stop=Event())
    young.refresh_from_db()
    assert (young.state, states()) == ("parked", {"discarded": 1, "parked": 1})


def test_all_parked_messages_are_locked_before_any_group_and_groups_by_their_keys(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOCKED_AT_ONCE", 1)
    headers = [deaths_header(a_death(queue=name)) for name in "abab"]
    parked_messages = parked(broker, *(a_message(b"1", one) for one in headers))
    groups = sorted({parked_message.group_id for parked_message in parked_messages})
    for act in (
        lambda: discard.change_all(user, broker, DISCARD),
        lambda: discard.change_these(user, broker, RESTORE, [one.pk for one in parked_messages]),
    ):
        with CaptureQueriesContext(connection) as asked:
            act()
        assert order_of(asked) == ["parked_messages"] * 4 + groups
    long_ago = timezone.now() - timedelta(days=31)
    ParkedMessage.objects.update(state=ParkedState.DISCARDED, state_at=long_ago)
    MessageGroup.objects.update(discarded=2, parked=0)
    with CaptureQueriesContext(connection) as asked:
        clean(PARKED, timezone.now())
    # Locked they are before; deleted they are last, since that changes items of replays.
    assert order_of(asked) == [*groups, "parked_messages"]


def order_of(asked: CaptureQueriesContext) -> list[str | int]:
    """Which messages and groups were changed, one after the other."""
    found: list[str | int] = []
    for query in asked.captured_queries:
        sql = query["sql"]
        if re.match(
            r'(UPDATE "delayboard_parkedmessage" SET "state"|DELETE FROM \S*parkedmessage")', sql
        ):
            found.append("parked_messages")
        elif sql.startswith('UPDATE "delayboard_messagegroup"'):
            found.append(int(re.findall(r'"id" = (\d+)', sql)[-1]))
    return found


def test_a_cancelled_change_leaves_the_others(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discard, "AT_ONCE", 1)
    monkeypatch.setattr(discard, "CHUNK", 2)
    parked_messages = parked(broker, *(a_message(b"%d" % number) for number in range(4)))
    change = discard.change_all(user, broker, DISCARD, group=parked_messages[0].group)
    claimed = work.claim((discard.KIND,), "worker")
    assert claimed is not None
    work.attempt(discard.run, claimed, stop=Event(), alive=lambda: discard.cancel(user, change))
    change.refresh_from_db()
    assert change.work is not None
    assert change.work.state == WorkState.CANCELLED
    assert states() == {"discarded": 2, "parked": 2}
    with pytest.raises(discard.ChangeError):
        discard.cancel(user, ParkedChange.objects.get())


@pytest.mark.parametrize("left", ["account", "right"])
def test_who_may_no_longer_ask_changes_nothing(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(discard, "AT_ONCE", 0)
    parked(broker, a_message(b"1"))
    change = discard.change_all(user, broker, DISCARD, query="state:parked")
    claimed = work.claim((discard.KIND,), "worker")
    assert claimed is not None
    if left == "account":
        user.delete()
    else:

        def refuse(*args: Any) -> Any:
            raise QueryError("You may not ask this.")

        monkeypatch.setattr("analytics.search.find.find_refusal", refuse)
    work.attempt(discard.run, claimed, stop=Event())
    change.refresh_from_db()
    assert change.work is not None
    assert change.work.state == WorkState.FAILED
    assert states() == {"parked": 1}
