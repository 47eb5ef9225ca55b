"""What the dry run says of each message is what then happens to it, on every broker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.replay import batch_state, make_draft
from delayboard.dead_letters.replay.edit_headers import Typed
from delayboard.dead_letters.replay.edit_message import edit_message
from delayboard.dead_letters.replay.options import Options
from delayboard.dead_letters.replay.send_batch import replay
from delayboard.dead_letters.replay.verdicts import find_limited_queues
from delayboard.demo.node import PrivateNode
from delayboard.models import ItemState, ParkedMessage, ParkedState, ReplayBatch, TargetMode
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, eventually, make_broker, make_user
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.topology.builders import a_queue
from topology import snapshots, work
from topology.broker.amqp.consumer import getter
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.deaths import Death
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import REPLAYS_HEADER
from topology.models import Broker, Role
from topology.operations import provision
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.structure.copies import Tap
from topology.structure.taps import tap_definitions

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("event_log")]

THERE = Definitions.of(
    [
        Exchange("orders"),
        Exchange("news", "fanout"),
        Exchange("logs", "topic"),
        Exchange("sorter", "headers"),
        Exchange("strict", arguments=Arguments({"alternate-exchange": "news"})),
        a_queue("orders", dlx="", key="dead"),
        a_queue("audit"),
        a_queue("dead"),
        a_queue("hold", ttl=300, dlx="orders", key="orders"),
        a_queue("round", ttl=200, dlx="", key="dead"),
        a_queue("lost", ttl=200),
        a_queue("nowhere", ttl=200, dlx="gone"),
        a_queue("ring", ttl=100, dlx="", key="ring"),
        Binding("orders", "orders", "orders"),
        Binding("news", "orders", ""),
        Binding("news", "audit", ""),
        Binding("news", "hold", ""),
        Binding("logs", "audit", "a.#"),
        Binding("sorter", "audit", "", arguments=Arguments({"kind": "pdf"})),
        Binding("sorter", "orders", "", arguments=Arguments({"x-match": "any", "n": 7})),
    ]
)
ENDS = ("orders", "audit", "dead")
WAITS = ("hold", "round", "lost", "nowhere", "ring")
ARRIVES = re.compile(r"rrives in (\S+?)(?: at once| after |\.)")


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    with Management(address_of(vhost)) as management:
        management.declare(THERE)
    return make_broker(vhost)


@pytest.fixture
def user(broker: Broker) -> User:
    return make_user("ann", Role.OPERATOR)


class Journal:
    """Messages with names of their own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._number = 0

    def parked_message(
        self, *deaths: Death, headers: dict[str, Any] | None = None, **stated: Any
    ) -> ParkedMessage:
        self._number += 1
        message = a_message(
            b"{}",
            {**deaths_header(*deaths), **(headers or {})},
            message_id=f"m{self._number}",
            **stated,
        )
        (row,) = parked(self._broker, message)
        return row

    def plain(self, **headers: Any) -> ParkedMessage:
        return self.parked_message(a_death(), headers=headers)


def drafted(user: User, rows: Iterable[ParkedMessage], **options: Any) -> ReplayBatch:
    found = list(rows)
    keys = [row.pk for row in found]
    return make_draft.draft_messages(user, found[0].broker, keys, Options(**options))


def sent(user: User, batch: ReplayBatch) -> None:
    batch_state.start(user, batch, despite_verdict=True)
    claimed = work.claim((batch_state.KIND,), "w1")
    assert claimed is not None
    work.attempt(replay, claimed, stop=Event())
    batch.refresh_from_db()
    assert batch.pending == 0, batch.state_why


def found_in(broker: Broker, queues: Iterable[str]) -> Counter[tuple[str, str]]:
    """Which message lies where, when nothing waits in a delay any more."""
    eventually(
        lambda: not any(live_depths(broker.address, WAITS[:-1]).values()),
        "the delays are empty",
    )
    found: Counter[tuple[str, str]] = Counter()
    for queue in queues:
        with getter(broker.address, queue) as source:
            while (delivery := source.get()) is not None:
                found[queue, delivery.message.properties.message_id or ""] += 1
    return found


def foretold(batch: ReplayBatch) -> Counter[tuple[str, str]]:
    """What the dry run says: where each copy arrives."""
    reported: Counter[tuple[str, str]] = Counter()
    for item in batch.items.select_related("route"):
        assert item.route is not None
        for queue in ARRIVES.findall(item.route.verdict):
            reported[queue, item.message_id] += 1
    return reported


ENDED = {"unroutable": {ItemState.RETURNED, ItemState.FAILED}, "refused": {ItemState.FAILED}}


def check_states(batch: ReplayBatch) -> Counter[str]:
    """Each item ended as its verdict says, and its message with it; how many endings there were."""
    endings: Counter[str] = Counter()
    for item in batch.items.select_related("route", "parked_message"):
        assert item.route is not None
        assert item.parked_message is not None
        ending = item.route.ending
        endings[ending] += 1
        assert item.state in ENDED.get(ending, {ItemState.DONE}), item.route.verdict
        if item.state != ItemState.DONE:
            assert item.parked_message.state == ParkedState.PARKED
        elif item.route.after_ms:
            assert item.parked_message.state == ParkedState.DELAYED
        else:
            assert item.parked_message.state == ParkedState.REPLAYED
    return endings


def test_each_message_goes_where_the_dry_run_says(user: User, broker: Broker) -> None:
    journal = Journal(broker)
    parked_message, plain = journal.parked_message, journal.plain
    mixed = [
        plain(),
        parked_message(a_death(exchange="news", routing_keys=("any",))),
        parked_message(a_death("hold", exchange="", routing_keys=("hold",))),
        parked_message(a_death("dead", exchange="", routing_keys=("dead",))),
        parked_message(a_death("round", exchange="", routing_keys=("round",))),
        parked_message(a_death("lost", exchange="", routing_keys=("lost",))),
        parked_message(a_death("gone", exchange="gone")),
        parked_message(headers={"a": 1}),
        parked_message(a_death("audit", exchange="logs", routing_keys=("a.b",))),
        parked_message(a_death(), a_death("hold", "expired", exchange="", routing_keys=("hold",))),
        plain(**{REPLAYS_HEADER: 3}),
        plain(CC=["audit"], BCC=["audit"]),
        parked_message(a_death("audit", exchange="", routing_keys=("audit",)), expiration="150"),
        parked_message(a_death(), user_id="somebody"),
    ]
    typed: list[tuple[list[ParkedMessage], str, str]] = [
        ([plain(), plain()], "news", ""),
        ([plain(kind="pdf"), plain(kind="doc"), plain(n=7), plain(n=7, kind="pdf")], "sorter", ""),
        ([plain()], "strict", "odd"),
        ([plain()], "gone", "orders"),
        ([plain(), plain()], "orders", "unbound"),
        ([plain()], "", "gone"),
        ([plain()], "", "nowhere"),
        ([plain()], "logs", "b.a"),
    ]
    drafts = [drafted(user, mixed)]
    drafts += [
        drafted(user, rows, mode=TargetMode.TYPED, exchange=exchange, key=key)
        for rows, exchange, key in typed
    ]
    drafts.append(
        drafted(
            user,
            [
                plain(),
                parked_message(a_death("gone", exchange="gone")),
                parked_message(a_death("hold")),
            ],
            mode=TargetMode.FIRST_QUEUE,
        )
    )
    reported = sum(map(foretold, drafts), Counter[tuple[str, str]]())
    for draft in drafts:
        sent(user, draft)
    endings = sum(map(check_states, drafts), Counter[str]())
    assert found_in(broker, ENDS) == reported
    assert set(endings) == {"delivered", "loops", "lost", "unroutable", "refused", "guarded"}


@every_generation
def test_what_expires_in_a_ring_is_lost_or_goes_round_as_it_is_told(
    user: User, broker: Broker
) -> None:
    draft = drafted(user, [Journal(broker).plain()], mode=TargetMode.TYPED, key="ring")
    (route,) = draft.routes.all()
    sent(user, draft)
    check_states(draft)
    assert route.ending == "lost", route.verdict
    eventually(lambda: not live_depths(broker.address, ["ring"])["ring"], "it is dropped")
    assert not found_in(broker, ENDS)


@pytest.mark.parametrize(
    ("kind", "params", "delay_ms"),
    [
        (retry_pair.KIND, retry_pair_params.Params("jobs", timedelta(milliseconds=300)), 300),
        (hold_queues.KIND, hold_queues_params.Params(""), 300),
        (delay_levels.KIND, delay_levels_params.Params("own", "shop", 3), 1000),
    ],
)
def test_through_a_delay_it_arrives_as_the_dry_run_says(
    user: User, broker: Broker, kind: str, params: Any, delay_ms: int
) -> None:
    topology = create_topology(None, broker, kind, params)
    provision.apply(None, topology)
    snapshots.forget(broker.pk)
    journal = Journal(broker)
    rows = [
        journal.plain(),
        journal.parked_message(a_death("audit", exchange="", routing_keys=("audit",))),
    ]
    draft = drafted(
        user,
        rows,
        mode=TargetMode.DELAY,
        topology_id=topology.pk,
        delay=timedelta(milliseconds=delay_ms),
        # A pair has one destination, in which none of them died.
        key="jobs" if kind == retry_pair.KIND else "",
    )
    assert {route.after_ms for route in draft.routes.all()} == {delay_ms}
    reported = foretold(draft)
    assert reported.total() == 2
    sent(user, draft)
    assert check_states(draft) == {"delivered": 2}
    ends = sorted({queue for queue, _ in reported})
    eventually(lambda: sum(live_depths(broker.address, ends).values()) == 2, f"both are in {ends}")
    assert found_in(broker, ends) == reported


def test_an_edited_message_goes_where_its_own_verdict_says(user: User, broker: Broker) -> None:
    journal = Journal(broker)
    draft = drafted(
        user,
        [journal.plain(kind="doc") for _ in range(3)],
        mode=TargetMode.TYPED,
        exchange="sorter",
    )
    edit_message(user, draft.items.get(position=2), set_headers={"kind": Typed("", "pdf")})
    reported = foretold(draft)
    sent(user, draft)
    assert check_states(draft) == {"unroutable": 2, "delivered": 1}
    assert found_in(broker, ENDS) == reported == {("audit", "m2"): 1}


def test_a_tap_of_ours_is_never_taken_for_an_arrival(user: User, broker: Broker) -> None:
    """At a tapped exchange the broker confirms what the tap alone takes."""
    tap = tap_definitions("delayboard.tap.x", [Tap("orders", "#", "entry")], "classic")
    with Management(broker.address) as management:
        for queue in tap.queues:
            management.declare_queue(queue)
        for key in ("orders", "unbound"):
            management.bind(Binding("orders", "delayboard.tap.x", key))
    snapshots.forget(broker.pk)
    journal = Journal(broker)
    drafts = [
        drafted(user, [journal.plain()], mode=TargetMode.TYPED, exchange="orders", key=key)
        for key in ("orders", "unbound")
    ]
    for draft in drafts:
        sent(user, draft)
    assert [check_states(draft) for draft in drafts] == [{"delivered": 1}, {"unroutable": 1}]
    assert found_in(broker, ENDS) == {("orders", "m1"): 1}


@pytest.mark.parametrize("by_policy", [False, True])
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_verdict_says_how_full_a_queue_is(
    user: User,
    broker: Broker,
    vhost: Vhost,
    broker_node: PrivateNode,
    overflow: str,
    *,
    by_policy: bool,
) -> None:
    with Management(broker.address) as management:
        management.declare_queue(a_queue("few") if by_policy else few(overflow))
    if by_policy:
        definition = {"max-length": 5, "overflow": overflow}
        policy = {"pattern": "^few$", "definition": definition, "apply-to": "queues"}
        call_api(broker_node, "PUT", f"policies/{vhost.name}/few", policy)
    eventually(lambda: read_limit(broker) == 0, "the policy and the numbers are seen")
    journal = Journal(broker)
    options: dict[str, Any] = {"mode": TargetMode.TYPED, "key": "few"}
    draft = drafted(user, [journal.plain() for _ in range(5)], **options)
    (route,) = draft.routes.all()
    assert route.verdict.endswith("“few” has a maximum length of 5 messages, and 0 messages now.")
    assert route.is_good
    sent(user, draft)
    eventually(lambda: read_limit(broker) == 5, "the numbers are seen")
    (route,) = drafted(user, [journal.plain()], **options).routes.all()
    assert (route.ending, route.is_good) == ("full", False)


def few(overflow: str) -> Queue:
    return a_queue("few", x_max_length=5, x_overflow=overflow)


def read_limit(broker: Broker) -> int | None:
    """How many messages the limited queue has; None while its limit is not seen."""
    snapshot = snapshots.poll(broker, 20).snapshot
    found = find_limited_queues(snapshot).get("few") if snapshot else None
    return found.has if found else None


def test_a_verdict_is_that_of_the_broker_as_it_is_now(user: User, broker: Broker) -> None:
    journal = Journal(broker)
    options: dict[str, Any] = {"mode": TargetMode.TYPED, "key": "young"}
    draft = drafted(user, [journal.plain()], **options)
    assert draft.routes.get(items_number=1).ending == "unroutable"
    with Management(broker.address) as management:
        management.declare_queue(a_queue("young"))
    make_draft.change_options(user, draft, Options(**options))
    assert draft.routes.get(items_number=1).ending == "delivered"
    with Management(broker.address) as management:
        management.delete_queue("young", only_if_empty=False)
    draft = drafted(user, [journal.plain()], **options)
    assert draft.routes.get(items_number=1).ending == "unroutable"
    assert draft.state_why == ""
