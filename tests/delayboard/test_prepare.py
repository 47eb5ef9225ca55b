"""Freezing what was chosen: exactly that, once, with its targets and verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from delayboard.dead_letters.browse import history_id
from delayboard.dead_letters.discard import DISCARD, change_these
from delayboard.dead_letters.replay import batch as batches
from delayboard.dead_letters.replay import chosen, desk, freeze, prepare, redirect, select
from delayboard.dead_letters.replay.batch import BatchError
from delayboard.dead_letters.replay.edit import edit, undo
from delayboard.dead_letters.replay.lacking import left_out
from delayboard.dead_letters.replay.options import OptionError, Options
from delayboard.dead_letters.replay.target import delay_queues
from delayboard.dead_letters.search.texts import begin, keep_up
from delayboard.models import (
    BatchState,
    DeadLetter,
    DeadLetterQueue,
    LetterGroup,
    LetterState,
    Order,
    RedirectRule,
    ReplayBatch,
    ReplayItem,
    ReplayRoute,
    Source,
    TargetMode,
)
from tests.builders import make_broker
from tests.delayboard.builders import (
    TAPPED,
    a_death,
    a_message,
    deaths_header,
    parked,
    shop,
    some_letters,
)
from tests.delayboard.preparing import know, known, letters_of, routes_of, work_off
from tests.topology.builders import NOON, a_queue, a_snapshot
from topology import latest
from topology.definitions import Binding, Exchange
from topology.latest import Latest
from topology.message import REPLAYS_HEADER, Message
from topology.models import AuditEntry, Broker, MaskKind, MaskRule, Topology, Work, WorkState
from topology.snapshot import QueueNumbers, Snapshot

PLAIN = Options()
TYPED = Options(mode=TargetMode.TYPED, exchange="orders", key="orders")


@pytest.fixture(autouse=True)
def seen(broker: Broker) -> Iterator[None]:
    with known(broker):
        yield


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than two letters are much, and are done two at a time."""
    monkeypatch.setattr(freeze, "AT_ONCE", 2)
    monkeypatch.setattr(select, "AT_ONCE", 2)
    monkeypatch.setattr(prepare, "CHUNK", 2)
    monkeypatch.setattr(chosen, "SLICE", 3)


def some(broker: Broker, number: int, **headers: object) -> list[int]:
    messages = [
        a_message(str(place).encode(), {**deaths_header(a_death()), **headers})
        for place in range(number)
    ]
    return [letter.pk for letter in parked(broker, *messages)]


def group_of(key: int) -> LetterGroup:
    return DeadLetter.objects.get(pk=key).group


def nothing_was_made() -> bool:
    made = (ReplayBatch, ReplayItem, ReplayRoute, Work)
    return not any(model.objects.exists() for model in made)


def test_chosen_letters_are_frozen_in_the_order_of_their_ids(user: User, broker: Broker) -> None:
    keys = some(broker, 4)
    batch = select.of_letters(user, broker, [keys[2], keys[0], keys[3], keys[0]], PLAIN)
    assert batch.state == BatchState.DRAFT
    assert letters_of(batch) == [keys[0], keys[2], keys[3]]
    assert (batch.selected, batch.pending, batch.said) == (3, 3, "3 chosen letters")
    assert routes_of(batch) == {("orders", "orders", "delivered"): 3}
    entry = AuditEntry.objects.get(action="replay prepared")
    assert (entry.what, entry.details["messages"]) == ("3 chosen letters", 3)
    item = batch.items.first()
    assert item is not None
    assert (item.size, item.state) == (1, "pending")


def test_what_is_not_parked_is_left_out_and_said(user: User, broker: Broker) -> None:
    keys = some(broker, 4)
    change_these(user, broker, DISCARD, [keys[0]])
    DeadLetter.objects.filter(pk=keys[1]).update(state=LetterState.HANDED)
    DeadLetter.objects.filter(pk=keys[2]).update(state=LetterState.REPLAYING)
    batch = select.of_letters(user, broker, [*keys, 10_000], PLAIN)
    assert letters_of(batch) == [keys[1], keys[3]]
    assert batch.state_why == (
        "3 of the chosen messages are left out: they are discarded, replayed or gone."
    )


def test_letters_of_another_broker_are_never_chosen(user: User, broker: Broker) -> None:
    other = make_broker(name="Another")
    with pytest.raises(BatchError, match="nothing to replay"):
        select.of_letters(user, broker, some(other, 1), PLAIN)
    assert nothing_was_made()


def test_nothing_is_left_behind_when_there_is_nothing_to_replay(user: User, broker: Broker) -> None:
    (key,) = some(broker, 1)
    group = group_of(key)
    change_these(user, broker, DISCARD, [key])
    for choose in (
        lambda: select.of_letters(user, broker, [], PLAIN),
        lambda: select.of_letters(user, broker, [key], PLAIN),
        lambda: select.of_letters(user, broker, range(1, 10_002), PLAIN),
        lambda: select.of_group(user, group, PLAIN),
        lambda: select.of_query(user, broker, "died:orders", PLAIN),
        lambda: select.of_query(user, broker, "state:discarded", PLAIN),
        lambda: select.of_query(user, broker, "colour:blue", PLAIN),
    ):
        with pytest.raises(BatchError):
            choose()
    assert nothing_was_made()


def test_a_broker_that_is_not_seen_is_said_and_nothing_is_judged(
    user: User, broker: Broker
) -> None:
    keys = some(broker, 1)
    know(broker, error="It does not answer.")
    with pytest.raises(BatchError, match="not known: It does not answer"):
        select.of_letters(user, broker, keys, PLAIN)
    assert nothing_was_made()


def test_a_broker_that_is_late_is_judged_as_it_was_seen_last_and_that_is_said(
    user: User, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = some(broker, 2)
    answers = Event()

    def observe(management: object) -> Snapshot:
        answers.wait(10)
        return a_snapshot(TAPPED)

    monkeypatch.setattr(latest, "observe", observe)
    monkeypatch.setattr(desk, "PATIENCE_SECONDS", 0.1)
    latest._latest[broker.pk] = Latest(a_snapshot(TAPPED), timezone.now())
    try:
        batch = select.of_letters(user, broker, keys, PLAIN)
        assert routes_of(batch) == {("orders", "orders", "delivered"): 2}
        assert batch.state_why == f"Judged by the broker as of {NOON:%H:%M:%S} UTC."
        answers.set()
        monkeypatch.setattr(desk, "PATIENCE_SECONDS", 10)
        select.change(user, batch, PLAIN)
        assert batch.state_why == ""
    finally:
        answers.set()


def test_a_group_is_frozen_up_to_the_newest_that_was_seen(user: User, broker: Broker) -> None:
    keys = some(broker, 3)
    parked(broker, a_message(headers=deaths_header(a_death("audit"))))
    group = group_of(keys[0])
    some(broker, 2)
    batch = select.of_group(user, group, PLAIN, newest=keys[2])
    assert letters_of(batch) == keys
    assert (batch.said, batch.group) == (f"the group {group.pk}", group)
    everything = select.of_group(user, group, PLAIN)
    assert everything.selected == 5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("by_group", [True, False])
def test_what_is_more_is_frozen_by_the_worker_as_it_would_be_at_once(
    user: User, broker: Broker, *, by_group: bool
) -> None:
    keys = some(broker, 7)
    parked(broker, a_message(headers=deaths_header(a_death("audit"))))
    if by_group:
        batch = select.of_group(user, group_of(keys[0]), PLAIN)
    else:
        batch = select.of_query(user, broker, "died:orders", PLAIN)
    assert (batch.state, batch.selected) == (BatchState.PREPARING, 0)
    some(broker, 1)
    done = work_off(batch)
    assert (batch.state, done.state, done.done) == (BatchState.DRAFT, WorkState.DONE, 7)
    assert letters_of(batch) == keys
    assert routes_of(batch) == {("orders", "orders", "delivered"): 7}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("order", Order)
def test_a_limit_takes_from_the_end_that_is_sent_first(
    user: User, broker: Broker, order: Order, number: int
) -> None:
    keys = some(broker, 6)
    wanted = keys[:number] if order == Order.OLDEST else keys[-number:]
    options = Options(order=order, limit=number)
    for batch in (
        select.of_group(user, group_of(keys[0]), options),
        select.of_query(user, broker, "", options),
    ):
        if number > 2:
            work_off(batch)
        assert letters_of(batch) == wanted


def test_letters_that_no_search_finds_yet_are_waited_for(user: User, broker: Broker) -> None:
    early = some(broker, 3, tenant=7)
    while keep_up(begin()):
        pass
    late = some(broker, 4, tenant=7)
    newest = late[-1]
    some(broker, 2, tenant=8)
    batch = select.of_query(user, broker, "header.tenant:7", PLAIN, newest=newest)
    assert batch.state == BatchState.PREPARING
    given_back = work_off(batch)
    assert (batch.state, given_back.state) == (BatchState.PREPARING, WorkState.WAITING)
    assert given_back.error == batch.state_why == "4 messages are not searchable yet."
    while keep_up(begin()):
        pass
    Work.objects.update(not_before_at=None)
    work_off(batch)
    assert (batch.state, batch.state_why) == (BatchState.DRAFT, "")
    assert letters_of(batch) == early + late
    at_once = select.of_query(user, broker, "header.tenant:7", PLAIN)
    assert at_once.state == BatchState.DRAFT


def test_what_no_search_asks_of_the_index_waits_for_nothing(user: User, broker: Broker) -> None:
    keys = some(broker, 3)
    for query in ("", "died:orders", "reason:rejected"):
        assert letters_of(select.of_query(user, broker, query, PLAIN)) == keys


def test_an_index_that_stands_still_is_not_waited_for_and_it_says_how_many_are_left_out(
    user: User, broker: Broker
) -> None:
    early = some(broker, 2, tenant=7)
    while keep_up(begin()):
        pass
    some(broker, 1200, tenant=7)
    batch = select.of_query(user, broker, "header.tenant:7", PLAIN)
    for _ in range(2):
        work_off(batch)
        Work.objects.update(not_before_at=None)
    assert batch.state == BatchState.PREPARING
    ReplayBatch.objects.update(state_at=timezone.now() - prepare.STANDS_STILL)
    batch.refresh_from_db()
    work_off(batch)
    said = left_out(1200)
    assert said.startswith("1,200 messages are left out: no search finds them yet")
    assert (batch.state, batch.state_why) == (BatchState.DRAFT, said)
    assert letters_of(batch) == early
    select.change(user, batch, TYPED)
    assert batch.state_why == said


def bounded(broker: Broker, has: int | None, **arguments: Any) -> None:
    numbers = {} if has is None else {"few": QueueNumbers(messages=has, ready=has)}
    ends = ("few", "dead", "other")
    declared = [a_queue(name, **arguments if name == "few" else {}) for name in ends]
    know(broker, shop(*declared), numbers=numbers)


FEW = Options(mode=TargetMode.TYPED, key="few")


@pytest.mark.parametrize(
    ("has", "arguments", "ending", "said"),
    [
        (0, {"x_max_length": 5}, "lost", "has 0: 7 of these 12 would be pushed out and lost"),
        (3, {"x_max_length": 5}, "lost", "3 that are in it and 7 of these 12 would be pushed"),
        (9, {"x_max_length": 20}, "lost", "has 9: 1 that is in it would be pushed out and lost"),
        (0, {"x_max_length": 5, "dlx": "", "key": "other"}, "full", "die into other"),
        (0, {"x_max_length": 5, "dlx": "", "key": "dead"}, "loops", "die into dead"),
        (0, {"x_max_length": 5, "dlx": "gone"}, "lost", "pushed out and lost"),
        (
            0,
            {"x_max_length": 5, "x_overflow": "reject-publish"},
            "full",
            "7 of these 12 would be refused and stay where they are",
        ),
        (None, {"x_max_length": 50}, "uncertain", "how many it has is not known"),
        (0, {"x_max_length_bytes": 9}, "lost", "these 12 have 14 bytes: some would be pushed out"),
        (1, {"x_max_length_bytes": 900}, "uncertain", "how many bytes it would have is not known"),
        (8, {"x_max_length": 20}, "delivered", ""),
        (0, {"x_max_length_bytes": 14}, "delivered", ""),
        (99, {"x_max_length": 5, "type": "stream"}, "delivered", ""),
    ],
)
@pytest.mark.parametrize("by_worker", [False, True])
def test_what_a_full_queue_would_push_out_is_told(
    user: User,
    broker: Broker,
    has: int | None,
    arguments: dict[str, Any],
    ending: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    by_worker: bool,
) -> None:
    bounded(broker, has, **arguments)
    keys = some(broker, 12)
    if by_worker:
        monkeypatch.setattr(freeze, "AT_ONCE", 2)
    batch = select.of_letters(user, broker, keys, FEW)
    if by_worker:
        work_off(batch)
    (route,) = batch.routes.all()
    assert said in route.verdict
    assert (route.ending, route.is_good) == (ending, ending == "delivered")
    assert routes_of(batch) == {("", "few", ending): 12}


def test_items_of_several_routes_fill_a_queue_together(user: User, broker: Broker) -> None:
    fan = Exchange("fan", "fanout")
    few = a_queue("few", x_max_length=5)
    numbers = {"few": QueueNumbers(messages=0, ready=0)}
    know(broker, shop(fan, few, Binding("fan", "few", "")), numbers=numbers)
    keys = some(broker, 4)
    messages = [
        a_message(headers=deaths_header(a_death("few", exchange="fan", routing_keys=(key,))))
        for key in "aab"
    ]
    keys += [row.pk for row in parked(broker, *messages)]
    batch = select.of_letters(user, broker, keys, PLAIN)
    assert all(route.is_good for route in batch.routes.all())
    for key in keys[:4]:
        redirect.redirect(user, group_of(key), "", "few")
    batch = select.of_letters(user, broker, keys, PLAIN)
    assert batches.bad_verdicts(batch) == {"lost": 7}
    assert all("2 of these 7" in route.verdict for route in batch.routes.all())


def test_an_edit_and_a_change_keep_what_is_told_of_a_full_queue(user: User, broker: Broker) -> None:
    bounded(broker, 0, x_max_length=5)
    batch = select.of_letters(user, broker, some(broker, 6), FEW)
    item = batch.items.select_related("batch__broker", "letter").get(position=2)
    edit(user, item, body=b"other")
    assert batches.bad_verdicts(batch) == {"lost": 6}
    undo(user, item)
    assert batches.bad_verdicts(batch) == {"lost": 6}
    bounded(broker, 0, x_max_length=6)
    select.change(user, batch, FEW)
    assert routes_of(batch) == {("", "few", "delivered"): 6}


def test_a_search_is_frozen_with_the_rights_of_who_asks(user: User, broker: Broker) -> None:
    some(broker, 2)
    MaskRule.objects.create(broker=broker, kind=MaskKind.HEADER, pattern="x-death")
    with pytest.raises(BatchError, match="hidden from you"):
        select.of_query(user, broker, "died:orders", PLAIN)
    assert nothing_was_made()
    assert select.of_query(None, broker, "died:orders", PLAIN).selected == 2


@pytest.mark.usefixtures("small")
def test_rights_that_are_gone_when_the_worker_comes_end_it(user: User, broker: Broker) -> None:
    some(broker, 5)
    batch = select.of_query(user, broker, "died:orders", PLAIN)
    MaskRule.objects.create(broker=broker, kind=MaskKind.HEADER, pattern="x-death")
    done = work_off(batch)
    assert (batch.state, done.state) == (BatchState.FAILED, WorkState.FAILED)
    assert "hidden from you" in batch.state_why


def test_an_empty_search_means_all_parked_letters_and_no_others(user: User, broker: Broker) -> None:
    keys = some(broker, 3)
    change_these(user, broker, DISCARD, [keys[0]])
    batch = select.of_query(user, broker, "  ", PLAIN)
    assert letters_of(batch) == keys[1:]
    assert batch.query


@pytest.mark.usefixtures("small")
def test_a_batch_whose_group_is_gone_does_not_mean_everything(user: User, broker: Broker) -> None:
    keys = some(broker, 5)
    batch = select.of_group(user, group_of(keys[0]), PLAIN)
    ReplayBatch.objects.update(group=None)
    work_off(batch)
    assert batch.state == BatchState.FAILED
    assert not batch.items.exists()


@pytest.mark.usefixtures("small")
def test_a_worker_that_is_stopped_leaves_it_to_another_that_goes_on(
    user: User, broker: Broker
) -> None:
    keys = some(broker, 7)
    batch = select.of_group(user, group_of(keys[0]), PLAIN)
    stop = Event()
    beats = iter(range(100))

    def alive() -> None:
        if next(beats) == 2:
            stop.set()

    given_back = work_off(batch, stop=stop, alive=alive)
    assert given_back.state == WorkState.WAITING
    assert 0 < batch.selected < 7
    work_off(batch)
    assert letters_of(batch) == keys
    assert routes_of(batch) == {("orders", "orders", "delivered"): 7}


@pytest.mark.usefixtures("small")
def test_one_that_dies_goes_on_at_the_chunk_that_was_not_committed(
    user: User, broker: Broker
) -> None:
    keys = some(broker, 7)
    batch = select.of_group(user, group_of(keys[0]), PLAIN)
    beats = iter(range(100))

    def alive() -> None:
        if next(beats) == 3:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        work_off(batch, alive=alive)
    Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
    work_off(batch)
    assert letters_of(batch) == keys
    assert batch.state == BatchState.DRAFT


@pytest.mark.usefixtures("small")
def test_it_can_be_cancelled_while_it_is_prepared(user: User, broker: Broker) -> None:
    keys = some(broker, 7)
    batch = select.of_group(user, group_of(keys[0]), PLAIN)
    beats = iter(range(100))

    def alive() -> None:
        if next(beats) == 2:
            batches.cancel(user, ReplayBatch.objects.get(pk=batch.pk))

    done = work_off(batch, alive=alive)
    assert (batch.state, done.state) == (BatchState.CANCELLED, WorkState.CANCELLED)
    assert batch.pending == 0
    assert not batch.items.exclude(state="cancelled").exists()
    assert set(DeadLetter.objects.values_list("state", flat=True)) == {LetterState.PARKED}


@pytest.mark.usefixtures("small")
def test_a_broker_that_is_not_seen_is_waited_for(user: User, broker: Broker) -> None:
    keys = some(broker, 5)
    batch = select.of_group(user, group_of(keys[0]), PLAIN)
    know(broker, error="It does not answer.")
    given_back = work_off(batch)
    assert (batch.state, given_back.state) == (BatchState.PREPARING, WorkState.WAITING)
    assert "does not answer" in given_back.error


def test_each_letter_has_its_own_target_and_verdict(user: User, broker: Broker) -> None:
    keys = [
        row.pk
        for row in parked(
            broker,
            a_message(),
            a_message(headers=deaths_header(a_death(exchange="news", routing_keys=("x",)))),
            a_message(headers=deaths_header(a_death("hold", "rejected", exchange=""))),
            a_message(headers=deaths_header(a_death("gone", exchange="gone"))),
            a_message(headers={"tenant": 1}),
            a_message(headers={**deaths_header(a_death()), REPLAYS_HEADER: 3}),
            a_message(headers=deaths_header(a_death("dead", exchange="", routing_keys=("dead",)))),
        )
    ]
    batch = select.of_letters(user, broker, keys, PLAIN)
    found = [
        (item.route.exchange, item.route.routing_key, item.route.ending, item.route.is_good)
        for item in batch.items.select_related("route")
        if item.route is not None
    ]
    assert found == [
        ("orders", "orders", "delivered", True),
        ("", "orders", "delivered", True),
        ("", "hold", "delivered", True),
        ("", "", "refused", False),
        ("", "", "refused", False),
        ("orders", "orders", "guarded", False),
        ("", "dead", "loops", False),
    ]
    said = {route.verdict: route.after_ms for route in batch.routes.all()}
    assert said["Arrives in orders after 5s."] == 5000
    assert any(text.startswith("It was replayed 3 times already and died again") for text in said)
    assert batches.bad_verdicts(batch) == {"refused": 2, "guarded": 1, "loops": 1}


def test_letters_that_all_tell_nothing_need_a_typed_target(user: User, broker: Broker) -> None:
    keys = [row.pk for row in parked(broker, a_message(headers={}), a_message(headers={"a": 1}))]
    draft = select.of_letters(user, broker, keys, PLAIN)
    assert (draft.state, routes_of(draft)) == (BatchState.DRAFT, {("", "", "refused"): 2})
    assert "type the exchange and key" in draft.state_why
    assert routes_of(select.of_letters(user, broker, keys, TYPED)) == {
        ("orders", "orders", "delivered"): 2
    }


@pytest.mark.usefixtures("small")
def test_the_worker_says_so_too(user: User, broker: Broker) -> None:
    parked(broker, *[a_message(headers={"a": place}) for place in range(5)])
    batch = select.of_query(user, broker, "", PLAIN)
    work_off(batch)
    assert (batch.state, routes_of(batch)) == (BatchState.DRAFT, {("", "", "refused"): 5})
    assert "type the exchange and key" in batch.state_why
    select.change(user, batch, TYPED)
    work_off(batch)
    assert (batch.state_why, routes_of(batch)) == ("", {("orders", "orders", "delivered"): 5})


def test_hostile_names_are_judged_and_kept(user: User, broker: Broker) -> None:
    nasty = ("a\x00b", "x" * 4000, "<b>\u202e", "")
    keys = [
        row.pk
        for name in nasty
        for row in parked(
            broker,
            a_message(headers=deaths_header(a_death(name, exchange=name, routing_keys=(name,)))),
        )
    ]
    keys += some(broker, 1)
    batch = select.of_letters(user, broker, keys, Options(mode=TargetMode.FIRST_QUEUE))
    endings = list(batch.items.values_list("route__ending", "route__routing_key"))
    assert endings == [
        ("refused", ""),
        ("refused", ""),
        ("unroutable", "<b>\u202e"),
        ("refused", ""),
        ("delivered", "orders"),
    ]


def test_properties_that_cannot_be_taken_apart_are_refused(user: User, broker: Broker) -> None:
    (row,) = parked(broker, a_message())
    DeadLetter.objects.filter(pk=row.pk).update(properties=b"\x20\x00\x00\x00\x00\x09\x01aq")
    keys = [row.pk, *some(broker, 1)]
    batch = select.of_letters(user, broker, keys, TYPED)
    route = batch.routes.get(ending="refused")
    assert "cannot be edited" in route.verdict
    assert batch.routes.get(ending="delivered").items_number == 1


def test_a_redirected_group_goes_where_its_rule_says(user: User, broker: Broker) -> None:
    keys = some(broker, 2)
    group = group_of(keys[0])
    redirect.redirect(user, group, "news", "")
    batch = select.of_group(user, group, PLAIN)
    assert routes_of(batch) == {("news", "", "delivered"): 2}
    assert RedirectRule.objects.get(group=group).set_by == user
    first = Options(mode=TargetMode.FIRST_QUEUE)
    assert routes_of(select.of_group(user, group, first)) == {("", "orders", "delivered"): 2}
    redirect.redirect(user, group, "", "audit")
    assert RedirectRule.objects.count() == 1
    assert redirect.clear(user, group)
    assert not redirect.clear(user, group)
    assert routes_of(select.of_group(user, group, PLAIN)) == {("orders", "orders", "delivered"): 2}
    actions = list(AuditEntry.objects.values_list("action", flat=True))
    assert actions.count("group redirected") == 2
    assert actions.count("group no longer redirected") == 1


@pytest.mark.parametrize(("exchange", "key"), [("", ""), ("x" * 256, ""), ("", "delayboard.tap.a")])
def test_a_rule_that_leads_nowhere_is_refused(
    user: User, broker: Broker, exchange: str, key: str
) -> None:
    (letter,) = some(broker, 1)
    with pytest.raises(OptionError):
        redirect.redirect(user, group_of(letter), exchange, key)
    assert not RedirectRule.objects.exists()


def delayed(topology: Topology, **changes: object) -> Options:
    stated = {"mode": TargetMode.DELAY, "topology_id": topology.pk, "delay": timedelta(seconds=5)}
    return Options(**{**stated, **changes})  # type: ignore[arg-type]


def test_through_a_delay_they_go_to_its_target(user: User, broker: Broker, pair: Topology) -> None:
    know(broker, shop() | pair.pattern.definitions(pair.parsed))
    keys = some(broker, 2)
    batch = select.of_letters(user, broker, keys, delayed(pair))
    (route,) = batch.routes.all()
    assert route.ending == "delivered", route.verdict
    assert route.after_ms == 5000
    assert "through the delay" in route.why


def test_a_delay_of_one_destination_takes_no_letters_of_other_queues(
    user: User, broker: Broker, pair: Topology
) -> None:
    know(broker, shop() | pair.pattern.definitions(pair.parsed))
    other = deaths_header(a_death("audit", exchange="news"))
    keys = [row.pk for row in parked(broker, a_message(headers=other))]
    (route,) = select.of_letters(user, broker, keys, delayed(pair)).routes.all()
    assert (route.is_good, route.ending) == (False, "refused")
    assert "and not to “audit”" in route.verdict
    typed = select.of_letters(user, broker, keys, delayed(pair, key="orders"))
    assert typed.routes.get().ending == "delivered"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"topology_id": 10_000}, "topology"),
        ({"delay": timedelta(seconds=7)}, "delay"),
        ({"key": "elsewhere"}, "key"),
    ],
)
def test_a_delay_that_is_not_on_offer_is_refused(
    user: User, broker: Broker, pair: Topology, changes: dict[str, object], field: str
) -> None:
    know(broker, shop() | pair.pattern.definitions(pair.parsed))
    keys = some(broker, 1)
    with pytest.raises(OptionError) as refused:
        select.of_letters(user, broker, keys, delayed(pair, **changes))
    assert list(refused.value.problems) == [field]
    assert nothing_was_made()


def test_a_topology_that_is_not_applied_is_refused(
    user: User, broker: Broker, pair: Topology
) -> None:
    Topology.objects.update(state="torn_down")
    with pytest.raises(OptionError, match="torn down"):
        select.of_letters(user, broker, some(broker, 1), delayed(pair))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("number", [2, 5])
def test_a_changed_draft_keeps_what_was_frozen(user: User, broker: Broker, number: int) -> None:
    keys = some(broker, number)
    batch = select.of_group(user, group_of(keys[0]), PLAIN)
    if number > 2:
        work_off(batch)
    before = list(batch.items.values_list("pk", "position", "letter"))
    some(broker, 3)
    options = Options(mode=TargetMode.TYPED, key="dead", rate=5.0, most_replays=1)
    select.change(user, batch, options)
    if number > 2:
        assert batch.state == BatchState.PREPARING
        work_off(batch)
    assert (batch.state, batch.selected, batch.rate) == (BatchState.DRAFT, number, 5.0)
    assert list(batch.items.values_list("pk", "position", "letter")) == before
    assert routes_of(batch) == {("", "dead", "loops"): number}
    select.change(user, batch, PLAIN)
    if number > 2:
        work_off(batch)
    assert routes_of(batch) == {("orders", "orders", "delivered"): number}
    assert ReplayRoute.objects.count() <= 2
    assert AuditEntry.objects.filter(action="replay changed").count() == 2


@pytest.mark.usefixtures("small")
def test_judging_anew_goes_on_where_a_worker_died(user: User, broker: Broker) -> None:
    keys = some(broker, 7)
    batch = select.of_group(user, group_of(keys[0]), PLAIN)
    work_off(batch)
    select.change(user, batch, TYPED)
    beats = iter(range(100))

    def alive() -> None:
        if next(beats) == 2:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        work_off(batch, alive=alive)
    Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
    work_off(batch)
    assert batch.state == BatchState.DRAFT
    assert letters_of(batch) == keys
    assert routes_of(batch) == {("orders", "orders", "delivered"): 7}


def test_only_a_draft_can_be_changed(user: User, broker: Broker) -> None:
    batch = select.of_letters(user, broker, some(broker, 1), PLAIN)
    batches.start(user, batch, despite_verdict=False)
    with pytest.raises(BatchError, match="Only a draft"):
        select.change(user, batch, TYPED)
    assert ReplayBatch.objects.get().target_mode == TargetMode.DEFAULT


def test_options_that_fit_no_message_change_nothing(user: User, broker: Broker) -> None:
    keys = [row.pk for row in parked(broker, a_message(headers={}))]
    batch = select.of_letters(user, broker, keys, TYPED)
    with pytest.raises(BatchError, match="type the exchange"):
        select.change(user, batch, PLAIN)
    with pytest.raises(OptionError):
        select.change(user, batch, Options(mode=TargetMode.DELAY, topology_id=5))
    batch.refresh_from_db()
    assert batch.target_mode == TargetMode.TYPED
    assert routes_of(batch) == {("orders", "orders", "delivered"): 1}


def confirm(user: User, broker: Broker, queue: str = "dead") -> None:
    DeadLetterQueue.objects.create(
        broker=broker, queue=queue, is_confirmed=True, decided_by=user, decided_at=timezone.now()
    )


HANDLES = [one.handle for one in some_letters([b"0", b"1", b"2"])]


def test_chosen_messages_of_a_queue_are_parked_first(user: User, broker: Broker) -> None:
    confirm(user, broker)
    some(broker, 1)
    batch = select.of_look(user, broker, "dead", HANDLES, PLAIN)
    assert (batch.state, batch.said) == (BatchState.PREPARING, "3 chosen messages of dead")
    assert batch.parking is not None
    assert batch.parking.handles == HANDLES
    waits = work_off(batch)
    assert (waits.state, waits.error) == (WorkState.WAITING, prepare.PARKS)
    session = batch.parking.parksession_set.create(
        broker=broker, queue="dead", began_at=timezone.now()
    )
    keys = some(broker, 2)
    DeadLetter.objects.filter(pk__in=keys).update(session=session)
    Work.objects.filter(parking=batch.parking).update(state=WorkState.DONE)
    Work.objects.update(not_before_at=None)
    batch.refresh_from_db()
    work_off(batch)
    assert letters_of(batch) == keys
    assert batch.state == BatchState.DRAFT
    assert batch.state_why == ("1 of the chosen messages were not found in the queue any more.")


def test_when_none_could_be_parked_it_has_failed_and_says_why(user: User, broker: Broker) -> None:
    confirm(user, broker)
    batch = select.of_look(user, broker, "dead", HANDLES, PLAIN)
    assert batch.parking is not None
    Work.objects.filter(parking=batch.parking).update(
        state=WorkState.FAILED, error="There is no queue “dead”."
    )
    work_off(batch)
    assert batch.state == BatchState.FAILED
    assert batch.state_why == (
        "None of the chosen messages could be parked. There is no queue “dead”."
    )


@pytest.mark.parametrize("queue", ["dead", "nowhere"])
def test_of_a_queue_that_nobody_confirmed_nothing_is_taken(
    user: User, broker: Broker, queue: str
) -> None:
    with pytest.raises(BatchError):
        select.of_look(user, broker, queue, HANDLES, PLAIN)
    with pytest.raises(BatchError):
        select.of_queue(user, broker, queue, PLAIN)
    assert nothing_was_made()


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "live_depths", lambda address, queues: dict.fromkeys(queues, 12))


@pytest.mark.usefixtures("deep")
def test_a_whole_queue_goes_straight_through_without_items(user: User, broker: Broker) -> None:
    confirm(user, broker)
    batch = select.of_queue(user, broker, "dead", PLAIN)
    assert (batch.source, batch.queue, batch.selected) == (Source.QUEUE, "dead", 12)
    assert batch.is_draft
    assert not batch.items.exists()
    (route,) = batch.routes.all()
    assert (route.is_good, route.items_number) == (True, 12)
    assert "worked out as it goes" in route.verdict
    select.change(user, batch, Options(mode=TargetMode.TYPED, key="dead"))
    (route,) = batch.routes.all()
    assert (route.routing_key, route.ending, route.items_number) == ("dead", "loops", 12)
    through = Options(mode=TargetMode.DELAY, topology_id=1, delay=timedelta(seconds=5))
    with pytest.raises(OptionError, match="into a delay"):
        select.of_queue(user, broker, "dead", through)
    with pytest.raises(OptionError, match="into a delay"):
        select.change(user, batch, through)
    typed = select.of_queue(user, broker, "dead", Options(**{**TYPED.__dict__, "limit": 5}))
    assert typed.selected == 5
    assert typed.routes.get().verdict == "Arrives in orders at once."


@pytest.mark.usefixtures("deep")
def test_straight_into_a_queue_that_cannot_hold_them_is_told(user: User, broker: Broker) -> None:
    confirm(user, broker)
    bounded(broker, 0, x_max_length=5)
    (route,) = select.of_queue(user, broker, "dead", FEW).routes.all()
    assert (route.is_good, route.ending) == (False, "lost")
    assert "7 of these 12 would be pushed out and lost" in route.verdict


def test_a_message_that_lay_in_a_queue_is_read_as_it_came(user: User, broker: Broker) -> None:
    """The one that the journal keeps decides, not the group that it is counted in."""
    (row,) = parked(broker, Message("", "dead", a_message().properties, b"1"), queue="audit")
    options = Options(mode=TargetMode.TYPED, key="audit")
    assert routes_of(select.of_letters(user, broker, [row.pk], options)) == {
        ("", "audit", "loops"): 1
    }


def test_the_queues_of_delays_are_known_as_long_as_their_topology_stands(
    broker: Broker, pair: Topology
) -> None:
    assert delay_queues(broker) == {"orders-retry"}
    Topology.objects.update(state="torn_down")
    assert delay_queues(broker) == set()


def test_a_topology_that_no_longer_reads_hides_no_other(broker: Broker, pair: Topology) -> None:
    Topology.objects.create(broker=broker, slug="odd", kind=pair.kind, name="odd", params={})
    assert delay_queues(broker) == {"orders-retry"}


def test_what_is_in_another_replay_already_is_said_so(user: User, broker: Broker) -> None:
    confirm(user, broker)
    keys = some(broker, 2)
    DeadLetter.objects.update(parked_at=timezone.now())
    earlier = select.of_letters(user, broker, keys, PLAIN)
    rows = DeadLetter.objects.filter(pk__in=keys)
    handles = [f"{r.content_id}.{history_id(r.message.properties.headers)}.1" for r in rows]
    batch = select.of_look(user, broker, "dead", handles, PLAIN)
    Work.objects.filter(parking=batch.parking).update(state=WorkState.FAILED, error="Gone.")
    work_off(batch)
    assert (batch.state, batch.state_why) == (
        BatchState.FAILED,
        "None of the chosen messages could be parked: they are in the journal already, in "
        f"replay {earlier.pk}.",
    )


@pytest.mark.usefixtures("small")
def test_what_another_has_parked_of_the_same_queue_is_not_taken(user: User, broker: Broker) -> None:
    confirm(user, broker)
    batch = select.of_look(user, broker, "dead", HANDLES, PLAIN)
    some(broker, 3)
    assert batch.parking is not None
    Work.objects.filter(parking=batch.parking).update(state=WorkState.DONE)
    work_off(batch)
    assert batch.state == BatchState.FAILED
    assert not batch.items.exists()


@pytest.mark.usefixtures("small")
def test_keys_that_differ_in_each_letter_are_routes_of_their_own(
    user: User, broker: Broker
) -> None:
    know(broker, shop(Exchange("logs", "topic"), Binding("logs", "audit", "#")))
    messages = [
        a_message(headers=deaths_header(a_death("audit", exchange="logs", routing_keys=(key,))))
        for key in "abcdea"
    ]
    parked(broker, *messages)
    batch = select.of_query(user, broker, "", PLAIN)
    work_off(batch)
    assert routes_of(batch) == {
        **{("logs", key, "delivered"): 1 for key in "bcde"},
        ("logs", "a", "delivered"): 2,
    }
    select.change(user, batch, TYPED)
    work_off(batch)
    assert routes_of(batch) == {("orders", "orders", "delivered"): 6}
    select.change(user, batch, PLAIN)
    work_off(batch)
    assert len(routes_of(batch)) == ReplayRoute.objects.count() == 5
