"""Merging groups: one shows the messages of all, and an undo restores each exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters import discard
from delayboard.dead_letters.parked import groups, store
from delayboard.dead_letters.parked.edit_groups import (
    MOST_MERGED,
    MergeError,
    merge_groups,
    restore_groups,
)
from delayboard.dead_letters.parked.groups import GroupFilter
from delayboard.dead_letters.queues.peek import number_messages
from delayboard.dead_letters.replay import make_draft
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.options import Options
from delayboard.dead_letters.replay.targets import read_redirects
from delayboard.dead_letters.search import search_by
from delayboard.models import (
    BatchState,
    MessageGroup,
    ParkedChange,
    ParkedMessage,
    ParkedState,
    RedirectRule,
    ReplayBatch,
    TargetMode,
)
from tests.builders import make_broker, make_user
from tests.delayboard.builders import a_death, a_message, deaths_header, page_of, parked
from tests.site.page_setup import know
from topology.definitions import Queue
from topology.message import Message
from topology.models import AuditEntry, Broker, Role

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
NOW = datetime.now(UTC).replace(microsecond=0)
COUNTED = ("parked", "discarded", "total", "first_at", "last_at", "note", "name", "merged_into")


def died_in(queue: str, number: int = 1, at: datetime = NOW) -> Message:
    return a_message(b"%d" % number, deaths_header(a_death(queue, first_at=at)))


def a_group(broker: Broker, queue: str, number: int, **stated: object) -> MessageGroup:
    """A group of so many messages that died in this queue."""
    parked(broker, *(died_in(queue, n) for n in range(number)), at=NOW)
    group = MessageGroup.objects.get(broker=broker, died_in=queue)
    MessageGroup.objects.filter(pk=group.pk).update(**stated)
    group.refresh_from_db()
    return group


@pytest.fixture
def user(broker: Broker) -> User:
    return make_user("ada", Role.OPERATOR, broker)


def rows() -> list[tuple[object, ...]]:
    return list(MessageGroup.objects.order_by("pk").values_list("pk", *COUNTED))


def shown(broker: Broker, **asked: object) -> list[tuple[str, int]]:
    page = page_of(broker, GroupFilter(**asked))  # type: ignore[arg-type]
    return [(group.title if group.name else group.died_in, group.parked) for group in page.rows]


def test_an_undo_restores_every_group_with_its_messages_and_new_arrivals(
    broker: Broker, user: User
) -> None:
    orders = a_group(broker, "orders", 3, note="Ask Ada")
    stock = a_group(broker, "stock", 2, note="Ask Bob")
    before = rows()
    merge_groups(user, broker, [orders.pk, stock.pk], orders.pk, "  No   stock ")
    assert shown(broker) == [("No stock", 5)]
    later = NOW + timedelta(hours=1)
    store.put(broker, "dead", [died_in("stock", 7, later)], at=later)
    assert shown(broker) == [("No stock", 6)]
    (seen,) = page_of(broker, GroupFilter()).rows
    assert (seen.note, seen.last_at, seen.total) == ("Ask Ada", later, 6)
    orders.refresh_from_db()
    assert restore_groups(user, orders) == 1
    after = rows()
    assert after[0] == before[0]
    assert after[1][1:4] == (3, 0, 3)
    assert after[1][6] == "Ask Bob"
    assert shown(broker, sort="count") == [("stock", 3), ("orders", 3)]
    assert ParkedMessage.objects.filter(group=stock).count() == 3
    done = AuditEntry.objects.filter(action__contains="merge").order_by("pk")
    assert [entry.action for entry in done] == ["groups merged", "merge of groups undone"]
    assert done[0].details == {"group": orders.pk, "merged": [stock.pk]}


def test_lists_sort_and_page_by_all_messages_of_a_merged_group(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {name: a_group(broker, name, size) for name, size in (("a", 1), ("b", 3), ("c", 4))}
    merge_groups(user, broker, [kept["a"].pk, kept["c"].pk], kept["a"].pk, "")
    monkeypatch.setattr(groups, "PAGE", 1)
    first = page_of(broker, GroupFilter(sort="count"))
    assert [(one.died_in, one.parked) for one in first.rows] == [("a", 5)]
    after = groups.parse({"sort": "count", "after": str(first.edge)})
    assert [one.died_in for one in page_of(broker, after).rows] == ["b"]
    newest = page_of(broker, GroupFilter())
    second = page_of(broker, groups.parse({"after": str(newest.edge)}))
    assert {one.died_in for one in (*newest.rows, *second.rows)} == {"a", "b"}
    keys = list(ParkedMessage.objects.filter(group=kept["a"]).values_list("pk", flat=True))
    parked_only = (ParkedState.PARKED,)
    store.change_parked_messages(keys, parked_only, ParkedState.DISCARDED, by=user, at=NOW)
    assert "a" in {one.died_in for one in page_of(broker, GroupFilter(sort="count")).rows}


def test_a_search_a_trend_and_a_peek_mean_all_of_a_merged_group(broker: Broker, user: User) -> None:
    orders, stock = a_group(broker, "orders", 3), a_group(broker, "stock", 2)
    merge_groups(user, broker, [orders.pk, stock.pk], stock.pk, "")
    both = frozenset({orders.pk, stock.pk})
    assert search_by(None, broker, f"group:{stock.pk}", NOW).groups == both
    assert search_by(None, broker, f"group:{orders.pk}", NOW).groups == frozenset({orders.pk})
    assert search_by(None, broker, f"-group:{stock.pk}", NOW).groups == frozenset()
    assert groups.trends([stock], groups.SPANS["day"], NOW)[stock.pk].total == 5
    newest = ParkedMessage.objects.order_by("-pk").values_list("pk", flat=True)[0]
    assert groups.newest_of(stock) == newest
    (seen,) = groups.seen_in(broker, "dead", number_messages([died_in("orders"), died_in("stock")]))
    assert (seen.group.pk, seen.number, seen.group.parked) == (stock.pk, 2, 5)


def test_a_replay_and_a_discard_take_all_of_a_merged_group(broker: Broker, user: User) -> None:
    know(broker, Queue("target"))
    orders, stock, other = (a_group(broker, q, n) for q, n in (("orders", 3), ("s", 2), ("o", 1)))
    merge_groups(user, broker, [orders.pk, stock.pk], orders.pk, "")
    options = Options(mode=TargetMode.TYPED, key="target")
    batch = make_draft.draft_group(user, orders, options)
    assert batch.selected == 5
    limited = Options(mode=TargetMode.TYPED, key="target", limit=4)
    assert make_draft.draft_group(user, orders, limited).selected == 4
    change = discard.change_all(user, broker, discard.DISCARD, group=orders)
    assert change.changed == 5
    stock.refresh_from_db()
    other.refresh_from_db()
    assert (stock.discarded, stock.parked, other.parked) == (2, 0, 1)


def test_the_redirect_of_the_group_that_stays_holds_for_all_until_the_undo(
    broker: Broker, user: User
) -> None:
    orders, stock = a_group(broker, "orders", 1), a_group(broker, "stock", 1)
    for group, key in ((orders, "new-orders"), (stock, "new-stock")):
        RedirectRule.objects.create(group=group, routing_key=key, set_at=NOW)
    merge_groups(user, broker, [orders.pk, stock.pk], orders.pk, "")
    assert {pk: one.routing_key for pk, one in read_redirects(broker).items()} == {
        orders.pk: "new-orders",
        stock.pk: "new-orders",
    }
    restore_groups(user, orders)
    assert read_redirects(broker)[stock.pk].routing_key == "new-stock"
    RedirectRule.objects.filter(group=orders).delete()
    merge_groups(user, broker, [orders.pk, stock.pk], orders.pk, "")
    assert read_redirects(broker) == {}


def test_what_cannot_be_merged_changes_nothing(broker: Broker, user: User) -> None:
    kept = {name: a_group(broker, name, 1).pk for name in ("a", "b", "c", "d")}
    foreign = a_group(make_broker(name="Other"), "x", 1).pk
    a, b, c, d = kept.values()

    def refused(match: str, keys: list[int], into: int, name: str = "") -> None:
        before = rows()
        with pytest.raises(MergeError, match=match):
            merge_groups(user, broker, keys, into, name)
        assert rows() == before

    refused("two or more groups", [a], a)
    refused("two or more groups", [a, foreign], a)
    refused("two or more groups", [a, b], 0)
    refused("longer than 100", [a, b], a, "x" * 101)
    merge_groups(user, broker, [a, b], a, "")
    refused("already merged", [b, c], c)
    refused("contains merged groups", [a, c], c)
    merge_groups(user, broker, [a, c], a, "")
    ReplayBatch.objects.create(broker=broker, group_id=d, state=BatchState.PREPARING, state_at=NOW)
    refused("is running", [a, d], a)
    with pytest.raises(MergeError, match="contains no merged groups"):
        restore_groups(user, MessageGroup.objects.get(pk=d))
    many = [a_group(broker, f"q{n}", 1).pk for n in range(MOST_MERGED)]
    refused("At most 50", [*many, a], a)


def test_a_merge_at_the_moment_of_a_discard_or_replay_adds_no_messages_to_it(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left to the worker was asked of the group as it was."""
    orders = a_group(broker, "orders", 3)
    late = [a_group(broker, name, 2).pk for name in ("stock", "bills")]
    know(broker, Queue("orders"))

    def merge_after(module: ModuleType, name: str) -> None:
        real = getattr(module, name)

        def choose(*args: object) -> object:
            found = real(*args)
            merge_groups(user, broker, [orders.pk, late.pop()], orders.pk, "")
            return found

        monkeypatch.setattr(module, "AT_ONCE", 1)
        monkeypatch.setattr(module, name, choose)

    merge_after(discard, "_select_messages")
    with pytest.raises(discard.ChangeError, match="changed during the request"):
        discard.change_all(user, broker, discard.DISCARD, group=orders)
    merge_after(make_draft, "find_selection")
    with pytest.raises(BatchError, match="changed at this moment"):
        make_draft.draft_group(user, orders, Options())
    assert not late
    assert not ParkedChange.objects.exists()
    assert not ReplayBatch.objects.exists()
