"""The pages of a chain of others that was adopted, in every shape."""

from __future__ import annotations

import pytest
from django.urls import reverse

from analytics.models import Firehose
from tests.builders import make_broker
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, BrokerObject, Definitions, Exchange
from topology.models import Broker, Role, Topology
from topology.operations.definitions_files import FORMATS
from topology.operations.topology_rows import take_over
from topology.provisioning.recognition import recognize

pytestmark = pytest.mark.django_db

BY_NAME = (
    a_queue("mail", dlx="", key="mail.waiting"),
    a_queue("mail.waiting", ttl=5000, dlx="", key="mail"),
)
BY_EXCHANGE = (
    Exchange("delay"),
    Exchange("work", "topic"),
    a_queue("delay.5s", ttl=5000, dlx="work"),
    a_queue("mail"),
    a_queue("audit"),
    Binding("delay", "delay.5s", "mail"),
    Binding("work", "mail", "mail"),
    Binding("work", "audit", "#"),
)
BY_EXPIRATION = (a_queue("mail", dlx="", key="dead"), a_queue("mail.delay", dlx="", key="mail"))
TO_NOWHERE = (a_queue("mail.delay", ttl=5000, dlx="gone"),)
LINKED = (
    Exchange("far", "topic"),
    Exchange("near", "topic"),
    Exchange("out", "topic"),
    a_queue("far", ttl=2000, dlx="near"),
    a_queue("near", ttl=1000, dlx="out"),
    a_queue("mail"),
    Binding("far", "far", "1.#"),
    Binding("far", "near", "0.#", destination_is_queue=False),
    Binding("near", "near", "*.1.#"),
    Binding("near", "out", "*.0.#", destination_is_queue=False),
    Binding("out", "mail", "#.mail"),
)
NATIVE = (
    a_queue("mail", type="quorum", **{"x_delayed_retry_type": "all", "x_delayed_retry_min": 1000}),
)
HELD = (
    a_queue("mail", dlx="", key="mail.XQ"),
    a_queue("mail.DQ", dlx="", key="mail.XQ"),
    a_queue("mail.XQ", ttl=604_800_000),
)
SHAPES = {
    "by name": BY_NAME,
    "by exchange": BY_EXCHANGE,
    "by expiration": BY_EXPIRATION,
    "to nowhere": TO_NOWHERE,
    "linked": LINKED,
    "native": NATIVE,
    "held by workers": HELD,
}
TABS = ("overview", "destinations", "definition", "code", "settings")


@pytest.fixture(params=sorted(SHAPES))
def shape(request: pytest.FixtureRequest) -> tuple[BrokerObject, ...]:
    return SHAPES[request.param]


@pytest.fixture
def adopted(shape: tuple[BrokerObject, ...]) -> Topology:
    broker: Broker = make_broker()
    know(broker, *shape)
    (one,) = recognize(a_snapshot(Definitions.of(shape))).found
    return take_over(None, broker, one.use.kind, one.use.params)


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_of_an_adopted_chain_is_shown(adopted: Topology, tab: str) -> None:
    name = "topology" if tab == "overview" else f"topology_{tab}"
    page = signed_in(Role.ADMIN).get(reverse(f"topology:{name}", args=[adopted.slug]))
    assert page.status_code == 200
    assert adopted.name in text_of(page)


def test_an_adopted_chain_is_exported_and_on_every_list(adopted: Topology) -> None:
    client = signed_in(Role.ADMIN)
    for address in ("topologies", "publish", "scheduled", "retrying", "reports"):
        assert client.get(f"/{address}/", follow=True).status_code == 200
    for form in FORMATS:
        address = reverse("topology:topology_export", args=[adopted.slug])
        assert client.get(address, {"format": form}).status_code == 200
    chosen = client.get("/publish/", {"topology": adopted.slug}, follow=True)
    assert chosen.status_code == 200
    for name in ("patterns", "explain"):
        given = {"explain": [adopted.kind]}.get(name, [])
        assert client.get(reverse(f"topology:{name}", args=given), follow=True).status_code == 200


def test_a_chain_has_no_parameters_to_edit_and_is_not_created(adopted: Topology) -> None:
    client = signed_in(Role.ADMIN)
    address = reverse("topology:topology_edit", args=[adopted.slug])
    assert client.get(address).status_code == 404
    definition = reverse("topology:topology_definition", args=[adopted.slug])
    assert "Edit parameters" not in text_of(client.get(definition))
    explanation = text_of(client.get(reverse("topology:explain", args=[adopted.kind])))
    assert "Plan topology" not in explanation


def adopt_shape(name: str) -> Topology:
    broker: Broker = make_broker()
    know(broker, *SHAPES[name])
    (one,) = recognize(a_snapshot(Definitions.of(SHAPES[name]))).found
    return take_over(None, broker, one.use.kind, one.use.params)


def overview_of(topology: Topology, role: Role) -> str:
    address = reverse("topology:topology", args=[topology.slug])
    return text_of(signed_in(role).get(address))


def test_what_no_tap_observes_has_the_switch_beside_it() -> None:
    row = adopt_shape("by expiration")
    text = overview_of(row, Role.ADMIN)
    assert "not observed: only messages published by Delayboard are listed" in text
    assert "No tap observes what is published to" in text
    assert f'action="{reverse("firehose_switch", args=[row.broker.slug])}"' in text
    assert f'name="next" value="{reverse("topology:topology", args=[row.slug])}"' in text
    assert "needs the role admin" in overview_of(row, Role.OPERATOR)
    Broker.objects.update(environment="production", is_production=True)
    text = overview_of(row, Role.ADMIN)
    assert "Enable firehose…" in text
    assert reverse("firehose_switch", args=[row.broker.slug]) not in text
    Firehose.objects.create(broker=row.broker, switched_on_by="ada")
    text = overview_of(row, Role.ADMIN)
    assert text.count("observed by the firehose") == 2
    assert "Enable firehose" not in text


def test_what_taps_could_observe_has_their_switch_and_no_other() -> None:
    text = overview_of(adopt_shape("by exchange"), Role.ADMIN)
    assert "Enable recording" in text
    assert "Enable firehose" not in text


def test_retries_within_a_queue_have_no_switch() -> None:
    text = overview_of(adopt_shape("native"), Role.ADMIN)
    assert "not observed: messages wait inside the work queue" in text
    assert "Enable firehose" not in text
    assert "The object matches the definition" in text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "by expiration",
            "channel.basic_publish(&quot;&quot;, &quot;mail.delay&quot;, body, properties)",
        ),
        (
            "by name",
            "basic_publish(&quot;&quot;, &quot;mail.waiting&quot;, body, properties)",
        ),
        ("linked", "None is known, because the exchange “out” has no queue for the key “*.1.#”."),
        ("to nowhere", "None is known, because the exchange “gone” does not exist."),
    ],
)
def test_the_code_publishes_by_a_route_that_arrives_or_says_why_not(name: str, line: str) -> None:
    row = adopt_shape(name)
    address = reverse("topology:topology_code", args=[row.slug])
    assert line in text_of(signed_in(Role.ADMIN).get(address))


def test_a_chain_whose_messages_state_their_delays_says_so_in_the_list() -> None:
    assert adopt_shape("by expiration").summary == "as each message states"
    assert adopt_shape("native").summary == "retries, no delay of new messages"


def test_a_chain_that_lost_a_binding_is_not_in_sync_since_it_was_adopted() -> None:
    """It was whole when it was adopted: that it is incomplete is a change."""
    row = adopt_shape("linked")
    know(row.broker, *(one for one in LINKED if one != LINKED[-1]))
    text = overview_of(row, Role.OPERATOR)
    assert "<h2>Not in sync</h2>" in text
    assert "changed since the topology was adopted" in text
    assert "1 new object<" in text


def test_a_chain_without_a_delay_of_its_own_is_offered_without_one() -> None:
    row = adopt_shape("by expiration")
    text = text_of(signed_in(Role.OPERATOR).get(reverse("publish")))
    assert f"{row.name} on {row.broker.name}: delay chain</option>" in text


def test_what_keeps_messages_of_a_chain_from_a_migration_is_said_before_a_target_is_chosen() -> (
    None
):
    row = adopt_shape("native")
    text = text_of(signed_in(Role.OPERATOR).get(reverse("migrate_delays", args=[row.slug])))
    assert "RabbitMQ delays failed messages in “" in text
    assert "No target" not in text
    linked = adopt_shape("linked")
    text = text_of(signed_in(Role.OPERATOR).get(reverse("migrate_delays", args=[linked.slug])))
    assert "no queue shows when they are due" in text
