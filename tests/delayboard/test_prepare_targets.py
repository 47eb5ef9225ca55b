"""Where each message goes: its own target, a redirect rule, a delay; and its verdict."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.replay import batch_state, make_draft, targets
from delayboard.dead_letters.replay.options import OptionError, Options
from delayboard.dead_letters.replay.targets import find_delay_queues
from delayboard.models import BatchState, ParkedMessage, RedirectRule, TargetMode
from tests.delayboard.builders import a_death, a_message, deaths_header, parked, shop
from tests.delayboard.preparing import (
    PLAIN,
    TYPED,
    group_of,
    know,
    nothing_was_made,
    routes_of,
    some,
)
from topology.message import REPLAYS_HEADER
from topology.models import AuditEntry, Broker, Topology

pytestmark = pytest.mark.usefixtures("seen")


def test_each_parked_message_has_its_own_target_and_verdict(user: User, broker: Broker) -> None:
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
    batch = make_draft.draft_messages(user, broker, keys, PLAIN)
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
    assert said["The message arrives in orders after 5s."] == 5000
    assert any(
        text.startswith("It was replayed 3 times already and dead-lettered again") for text in said
    )
    assert batch_state.count_bad_verdicts(batch) == {"refused": 2, "guarded": 1, "loops": 1}


def test_parked_messages_that_all_tell_nothing_need_a_typed_target(
    user: User, broker: Broker
) -> None:
    keys = [row.pk for row in parked(broker, a_message(headers={}), a_message(headers={"a": 1}))]
    draft = make_draft.draft_messages(user, broker, keys, PLAIN)
    assert (draft.state, routes_of(draft)) == (BatchState.DRAFT, {("", "", "refused"): 2})
    assert "Enter an exchange and a key" in draft.state_why
    assert routes_of(make_draft.draft_messages(user, broker, keys, TYPED)) == {
        ("orders", "orders", "delivered"): 2
    }


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
    batch = make_draft.draft_messages(user, broker, keys, Options(mode=TargetMode.FIRST_QUEUE))
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
    ParkedMessage.objects.filter(pk=row.pk).update(properties=b"\x20\x00\x00\x00\x00\x09\x01aq")
    keys = [row.pk, *some(broker, 1)]
    batch = make_draft.draft_messages(user, broker, keys, TYPED)
    route = batch.routes.get(ending="refused")
    assert "cannot be edited" in route.verdict
    assert batch.routes.get(ending="delivered").items_number == 1


def test_a_redirected_group_goes_where_its_rule_says(user: User, broker: Broker) -> None:
    keys = some(broker, 2)
    group = group_of(keys[0])
    targets.redirect_group(user, group, "news", "")
    batch = make_draft.draft_group(user, group, PLAIN)
    assert routes_of(batch) == {("news", "", "delivered"): 2}
    assert RedirectRule.objects.get(group=group).set_by == user
    first = Options(mode=TargetMode.FIRST_QUEUE)
    assert routes_of(make_draft.draft_group(user, group, first)) == {("", "orders", "delivered"): 2}
    targets.redirect_group(user, group, "", "audit")
    assert RedirectRule.objects.count() == 1
    assert targets.clear_redirect(user, group)
    assert not targets.clear_redirect(user, group)
    assert routes_of(make_draft.draft_group(user, group, PLAIN)) == {
        ("orders", "orders", "delivered"): 2
    }
    actions = list(AuditEntry.objects.values_list("action", flat=True))
    assert actions.count("group redirected") == 2
    assert actions.count("group no longer redirected") == 1


@pytest.mark.parametrize(("exchange", "key"), [("", ""), ("x" * 256, ""), ("", "delayboard.tap.a")])
def test_a_rule_that_leads_nowhere_is_refused(
    user: User, broker: Broker, exchange: str, key: str
) -> None:
    (parked_message,) = some(broker, 1)
    with pytest.raises(OptionError):
        targets.redirect_group(user, group_of(parked_message), exchange, key)
    assert not RedirectRule.objects.exists()


def delayed(topology: Topology, **changes: object) -> Options:
    stated = {"mode": TargetMode.DELAY, "topology_id": topology.pk, "delay": timedelta(seconds=5)}
    return Options(**{**stated, **changes})  # type: ignore[arg-type]


def test_through_a_delay_they_go_to_its_target(user: User, broker: Broker, pair: Topology) -> None:
    know(broker, shop() | pair.pattern.definitions(pair.parsed))
    keys = some(broker, 2)
    batch = make_draft.draft_messages(user, broker, keys, delayed(pair))
    (route,) = batch.routes.all()
    assert route.ending == "delivered", route.verdict
    assert route.after_ms == 5000
    assert "through the delay" in route.why


def test_a_delay_of_one_destination_takes_no_parked_messages_of_other_queues(
    user: User, broker: Broker, pair: Topology
) -> None:
    know(broker, shop() | pair.pattern.definitions(pair.parsed))
    other = deaths_header(a_death("audit", exchange="news"))
    keys = [row.pk for row in parked(broker, a_message(headers=other))]
    (route,) = make_draft.draft_messages(user, broker, keys, delayed(pair)).routes.all()
    assert (route.is_good, route.ending) == (False, "refused")
    assert "no destination “audit”" in route.verdict
    typed = make_draft.draft_messages(user, broker, keys, delayed(pair, key="orders"))
    assert typed.routes.get().ending == "delivered"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"topology_id": 10_000}, "topology_id"),
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
        make_draft.draft_messages(user, broker, keys, delayed(pair, **changes))
    assert list(refused.value.problems) == [field]
    assert nothing_was_made()


def test_a_topology_that_is_not_applied_is_refused(
    user: User, broker: Broker, pair: Topology
) -> None:
    Topology.objects.update(state="deleted")
    with pytest.raises(OptionError, match="deleted"):
        make_draft.draft_messages(user, broker, some(broker, 1), delayed(pair))


def test_the_queues_of_delays_are_known_as_long_as_their_topology_stands(
    broker: Broker, pair: Topology
) -> None:
    assert find_delay_queues(broker) == {"orders-retry"}
    Topology.objects.update(state="deleted")
    assert find_delay_queues(broker) == set()


def test_a_topology_that_no_longer_reads_hides_no_other(broker: Broker, pair: Topology) -> None:
    Topology.objects.create(broker=broker, slug="odd", kind=pair.kind, name="odd", params={})
    assert find_delay_queues(broker) == {"orders-retry"}
