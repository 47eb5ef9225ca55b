from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse

from tests.builders import make_pair, make_tapped
from tests.site.page_setup import know, signed_in, text_of
from topology import work
from topology.definitions import Arguments, Binding, Queue
from topology.models import Broker, QueueReplacement, Role, State, Topology, Work
from topology.operations.provision import DriftCheck
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "n" * 249, "a/b ü漢", '"><b>'])
def test_a_topology_of_any_name_has_a_page(broker: Broker, name: str) -> None:
    topology = make_pair(broker, name=name)
    know(broker, *topology.definitions)
    text = text_of(signed_in(Role.ADMIN).get(reverse("topology:topology", args=[topology.slug])))
    assert "<script>alert" not in text
    assert "<b>" not in text


def test_a_plan_in_conflict_shows_both_sides_and_cannot_be_applied(pair: Topology) -> None:
    ttl = Arguments({"x-message-ttl": 60_000, "x-dead-letter-exchange": "orders"})
    know(pair.broker, Queue("orders-retry", arguments=ttl))
    text = text_of(signed_in(Role.ADMIN).get(reverse("topology:topology", args=[pair.slug])))
    assert "Conflict: classic queue orders-retry" in text
    assert "<td>15000</td><td>60000</td>" in text
    assert "disabled title=" in text


def replaced(pair: Topology, *, ttl: int = 60_000) -> str:
    """The page of a pair that was applied, and whose retry queue has another TTL since."""
    pair.own([obj.identity for obj in pair.definitions])
    pair.state = State.APPLIED
    pair.save()
    arguments = Arguments({"x-message-ttl": ttl, "x-dead-letter-exchange": "orders"})
    others = [obj for obj in pair.definitions if obj.identity != ("queue", "orders-retry")]
    waiting: dict[str, Any] = {"orders-retry": 3}
    know(pair.broker, *others, Queue("orders-retry", arguments=arguments), **waiting)
    client = signed_in(Role.OPERATOR, pair.broker)
    return text_of(client.get(reverse("topology:topology", args=[pair.slug])))


@pytest.mark.parametrize("production", [False, True])
def test_a_queue_with_other_arguments_can_be_replaced(pair: Topology, production: bool) -> None:
    Broker.objects.update(is_production=production)
    pair.refresh_from_db()
    text = replaced(pair)
    assert "Replace 1 queue</button>" in text
    assert "RabbitMQ dead-letters 3 messages, the last at" in text
    assert ("to replace its queues</label>" in text) is production


def test_a_replacement_under_way_is_shown_with_what_waits_and_what_stops_it(pair: Topology) -> None:
    own = work.create("replace_queue", pair.pk, broker=pair.broker, user=None)
    Work.objects.update(error="The broker is away.")
    row = QueueReplacement.objects.create(topology=pair, queue="orders-retry", work=own, waiting=2)
    text = replaced(pair)
    assert f"{row.get_step_display()}, 2 messages wait." in text
    assert "The broker is away." in text
    assert "Replace 1 queue" not in text


def test_a_planned_topology_is_edited_after_a_preview(pair: Topology) -> None:
    client, address = signed_in(Role.OPERATOR, pair.broker), edit_address(pair)
    assert 'value="15s"' in text_of(client.get(address))
    values = {"name": "orders", "delay": "20s", "routing_key": "orders"}
    text = text_of(client.get(address, values))
    assert "No object in the broker changes." in text
    assert '<input type="hidden" name="delay" value="20s">' in text
    pair.refresh_from_db()
    assert pair.params["delay"] == "15s"
    assert "Parameters changed." in text_of(client.post(address, values, follow=True))
    pair.refresh_from_db()
    assert pair.params["delay"] == "20s"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "orders", "delay": "soon"}, "“soon” is not a duration."),
        ({"name": "other", "delay": "15s"}, "The topology would be named “other”"),
        ({"name": "orders", "delay": "15s"}, "The parameters are the same as before."),
        ({"name": "orders", "delay": "9s"}, "Nothing listens at"),
    ],
)
def test_an_edit_that_cannot_be_made_says_why(
    pair: Topology, given: dict[str, str], said: str
) -> None:
    Topology.objects.update(state=State.APPLIED)
    for ask in (signed_in(Role.OPERATOR, pair.broker).get, signed_in(Role.ADMIN).post):
        text = text_of(ask(edit_address(pair), given))
        assert said in text
        assert "Apply changes" not in text
    pair.refresh_from_db()
    assert pair.params["delay"] == "15s"


def edit_address(pair: Topology) -> str:
    return reverse("topology:topology_edit", args=[pair.slug])


@pytest.mark.parametrize(
    ("state", "objects", "said"),
    [
        (State.PLANNED, False, "Plan"),
        (State.PLANNED, True, "All objects already exist"),
        (State.APPLIED, True, "In sync"),
        (State.APPLIED, False, "Not in sync"),
        (State.APPLYING, False, "Apply the topology again to complete it"),
        (State.DELETED, False, "You cannot apply this topology again"),
    ],
)
def test_a_topology_says_how_it_stands(
    pair: Topology, state: State, objects: bool, said: str
) -> None:
    Topology.objects.filter(pk=pair.pk).update(state=state)
    know(pair.broker, *(pair.definitions if objects else ()))
    client = signed_in(Role.ADMIN)
    text = text_of(client.get(reverse("topology:topology", args=[pair.slug])))
    assert said in text
    applies = reverse("topology:topology_apply", args=[pair.slug]) in text
    assert applies is not (state == State.DELETED or said == "In sync")


@pytest.mark.parametrize(
    ("messages", "production", "asks"),
    [(0, False, False), (3, False, True), (0, True, True)],
)
def test_a_teardown_over_messages_or_on_production_asks_for_the_name(
    pair: Topology, messages: int, production: bool, asks: bool
) -> None:
    Broker.objects.update(is_production=production)
    pair.own([obj.identity for obj in pair.definitions])
    pair.save()
    know(pair.broker, *pair.definitions, orders=messages)
    page = reverse("topology:topology_settings", args=[pair.slug])
    text = text_of(signed_in(Role.ADMIN).get(page))
    assert ('data-confirm-name="orders"' in text) is asks
    assert ("3 messages would be deleted" in text) is bool(messages)
    assert "Delete: classic queue orders-retry" in text
    # The head of each tab leads there.
    other = text_of(signed_in(Role.ADMIN).get(reverse("topology:topology_code", args=[pair.slug])))
    assert f'href="{page}#deletion">Delete topology…</a>' in other


def test_a_teardown_of_queues_that_are_not_counted_yet_shows_no_number_and_no_time(
    broker: Broker,
) -> None:
    params = delay_levels_params.Params(preset="own", prefix="trial", levels=2)
    topology = create_topology(None, broker, delay_levels.KIND, params)
    topology.own([obj.identity for obj in topology.definitions])
    topology.save()
    uncounted: dict[str, Any] = {queue.name: None for queue in topology.definitions.queues}
    know(broker, *topology.definitions, **uncounted)
    page = reverse("topology:topology_settings", args=[topology.slug])
    text = text_of(signed_in(Role.ADMIN).get(page))
    deletion = text[text.index('id="deletion"') :]
    assert "An unknown number of messages would be deleted" in deletion
    assert ">Delete topology with its messages</button>" in deletion
    assert f"<p>Delayboard deletes {len(topology.definitions)} objects" in deletion
    assert "0 messages" not in deletion
    assert "the last leaves" not in deletion


def test_a_teardown_under_which_others_are_bound_is_not_offered(pair: Topology) -> None:
    pair.own([obj.identity for obj in pair.definitions])
    pair.save()
    know(pair.broker, *pair.definitions, Queue("<audit>"), Binding("orders", "<audit>", ""))
    page = reverse("topology:topology_settings", args=[pair.slug])
    text = text_of(signed_in(Role.ADMIN).get(page))
    assert "The queue “&lt;audit&gt;” is bound to the exchange “orders”. Unbind it first." in text
    assert reverse("topology:topology_teardown", args=[pair.slug]) not in text


@pytest.mark.parametrize("action", ["topology_apply", "topology_verify", "topology_teardown"])
def test_an_action_on_a_broker_that_does_not_answer_changes_nothing(
    pair: Topology, action: str
) -> None:
    client = signed_in(Role.ADMIN)
    address = reverse(f"topology:{action}", args=[pair.slug])
    text = text_of(client.post(address, {"name": "orders"}, follow=True))
    assert "Topology not " in text
    assert "http://127.0.0.1:9" in text
    pair.refresh_from_db()
    assert pair.state == State.PLANNED


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({"name": ""}, "This field is required"),
        ({"name": "amq.x"}, "RabbitMQ reserves"),
        ({"delay": "soon"}, "is not a duration"),
        ({"name": "orders"}, "already exists"),
    ],
)
def test_a_wrong_topology_is_said_and_not_made(
    pair: Topology, typed: dict[str, str], problem: str
) -> None:
    values = {"broker": pair.broker.slug, "name": "new", "delay": "1m", **typed}
    answer = signed_in(Role.ADMIN).post(reverse("topology:topology_add"), values)
    assert problem in text_of(answer)
    assert Topology.objects.count() == 1


def test_a_wrong_broker_is_said_and_not_saved() -> None:
    values = {"name": "x", "management_urls": "nonsense", "amqp_addresses": "h", "username": "u"}
    text = text_of(signed_in(Role.ADMIN).post(reverse("topology:broker_add"), values))
    assert "must look like" in text
    assert "The password is missing" in text
    assert Broker.objects.count() == 0


def test_a_broker_that_cannot_be_reached_is_saved_on_request_only() -> None:
    values = {
        "name": "New",
        "environment": "test",
        "colour": "green",
        "amqp_addresses": "127.0.0.1:9",
        "vhost": "/",
        "management_urls": "http://127.0.0.1:9",
        "username": "u",
        "password": "a secret",
    }
    client = signed_in(Role.ADMIN)
    text = text_of(client.post(reverse("topology:broker_add"), values, follow=True))
    assert "The broker is not saved" in text
    assert "AMQP: Nothing listens at 127.0.0.1:9" in text
    assert "Management API:" in text
    assert "a secret" not in text
    assert Broker.objects.count() == 0
    again = {**values, "untested": "1"}
    text = text_of(client.post(reverse("topology:broker_add"), again, follow=True))
    assert "AMQP: Nothing listens at 127.0.0.1:9" in text
    assert "No data yet" in text
    assert Broker.objects.get().address.password == "a secret"


def test_a_drift_is_shown_in_the_list_and_above_the_plan_that_restores_it(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    DriftCheck().update_rows(pair.broker, know(pair.broker))
    client = signed_in(Role.VIEWER, pair.broker)
    assert "Not in sync</span>" in text_of(client.get(reverse("topology:topologies")))
    text = text_of(client.get(reverse("topology:topology", args=[pair.slug])))
    assert '<section class="panel" id="plan">' in text
    assert "Not in sync since <time" in text


def test_each_tab_is_a_page_that_marks_itself(pair: Topology) -> None:
    know(pair.broker, *pair.definitions)
    client = signed_in(Role.VIEWER)
    for name in ("destinations", "definition", "code", "settings"):
        address = reverse(f"topology:topology_{name}", args=[pair.slug])
        assert f'href="{address}" aria-current="page"' in text_of(client.get(address))
    for name in ("messages", "history"):
        address = reverse(f"analytics:topology_{name}", args=[pair.slug])
        text = text_of(client.get(address))
        assert f'href="{address}" aria-current="page"' in text
        assert "Trace route</a>" in text
        assert "Verify topology</button>" in text


def test_empty_levels_are_folded_until_all_are_wanted(broker: Broker) -> None:
    params = delay_levels_params.Params("own", "shop", 12)
    levels = make_tapped(broker, delay_levels.KIND, params)
    depths: dict[str, Any] = {queue.name: 0 for queue in levels.definitions.queues}
    know(broker, *levels.definitions, **depths | {"shop.delay-level-05": 7})
    client, address = signed_in(Role.VIEWER), reverse("topology:topology", args=[levels.slug])
    text = text_of(client.get(address))
    assert "The diagram omits 9 empty levels and keeps the highest and the lowest." in text
    assert "Level 5, queue" in text
    assert "Level 6, queue" not in text
    assert "Level 6, queue" in text_of(client.get(address, {"levels": "all"}))


def test_fields_that_a_preset_forbids_are_marked_and_may_be_missing(broker: Broker) -> None:
    know(broker)
    client = signed_in(Role.OPERATOR)
    address = reverse("topology:topology_add") + "?kind=delay_levels"
    text = text_of(client.get(address))
    for name in ("levels", "unit"):
        assert re.search(f'name="{name}"[^>]* data-only-for="preset" data-only-values="own"', text)
    assert "form_choices.js" in text
    assert '<label for="id_prefix">Prefix</label>' in text
    assert '<label for="id_unit">Step <small>(optional)</small></label>' in text
    assert "When it stores 32 such messages" in text
    values = {"broker": broker.slug, "preset": "nsb-v1", "destinations": "queues"}
    refused = text_of(client.post(address, values | {"levels": "4"}))
    assert "This preset has 28 levels." in refused
    assert "Custom names need a prefix." in text_of(
        client.post(address, values | {"preset": "own"})
    )
    assert client.post(address, values).status_code == 302
    assert Topology.objects.get().parsed.queue_type == "classic"


def test_a_long_plan_has_its_summary_and_button_above_the_list_too(broker: Broker) -> None:
    params = delay_levels_params.Params("own", "shop", 12)
    levels = make_tapped(broker, delay_levels.KIND, params)
    know(broker)
    client, address = signed_in(Role.OPERATOR), reverse("topology:topology", args=[levels.slug])
    text = text_of(client.get(address))
    above, _, below = text.partition('<ul class="plan">')
    button = "Apply to Test broker"
    assert (above.count(button), below.count(button)) == (1, 1)
    assert "changes nothing that exists." in above
