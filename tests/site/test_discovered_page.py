from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
import responses
from django.urls import reverse
from django.utils.html import escape

from tests.builders import eventually, make_pair
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from tests.topology.test_provision import broker_says, takes_changes
from tests.topology.test_recognition import crowd
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.models import Broker, Role, State, Topology
from topology.operations.topology_rows import take_over
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues import params as delay_queues_params
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.pattern import Use
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.provisioning.recognition import Recognition, recognize
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults

pytestmark = pytest.mark.django_db

WHOLE = retry_pair.definitions(retry_pair_params.Params("orders", timedelta(seconds=5)))
LOST = Binding("orders", "orders", "orders")
ODD = a_queue("orders", dlx="orders-retry", type="quorum")


@pytest.fixture(autouse=True)
def nothing_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of different tests may have one number."""
    monkeypatch.setattr("topology.views.brokers.discovered_topologies._results", SnapshotResults())


def test_a_delay_queue_named_after_another_time_is_told(broker: Broker) -> None:
    know(
        broker,
        Exchange("retry", "fanout"),
        Exchange("back", "fanout"),
        a_queue("work", dlx="retry"),
        a_queue("work.60s", ttl=6000, dlx="back"),
        Binding("retry", "work.60s", ""),
        Binding("back", "work", ""),
    )
    assert "1 name with a different time" in (text := page(broker).lower()), text
    assert "no missing objects" not in text
    one = page(broker, kind="retry_loop", name="work")
    assert "The name of the queue “work.60s” states 1m, but the TTL is 6s." in one


def page(broker: Broker, role: Role = Role.OPERATOR, **asked: Any) -> str:
    address = reverse("topology:discovered", args=[broker.slug])
    return text_of(signed_in(role).get(address, asked))


def one(broker: Broker, role: Role = Role.OPERATOR, *, name: str = "orders") -> str:
    return page(broker, role, kind="retry_pair", name=name)


def adopt(broker: Broker, role: Role = Role.OPERATOR, **values: str) -> Any:
    address = reverse("topology:discovered_adopt", args=[broker.slug])
    typed = {"kind": "retry_pair", "name": "orders", **values}
    return signed_in(role).post(address, typed, follow=True)


def test_what_is_found_is_listed_with_how_complete_it_is_and_what_waits(broker: Broker) -> None:
    levels = delay_levels.definitions(delay_levels_params.Params("nsb-v2"))
    gone = ("queue", "nsb.v2.delay-level-27")
    know(broker, *WHOLE, *levels.without([gone]), error="", **{"orders-retry": 12_345})
    text = page(broker)
    assert "Complete" in text
    assert "1 of 113 objects missing" in text
    assert '<td data-label="Waiting" class="number">12\u202f345</td>' in text
    assert text.count(">Adopt topology</button>") == 2
    assert "unmanaged objects" not in text


def test_a_managed_one_leads_to_its_topology_and_is_not_offered(pair: Topology) -> None:
    know(pair.broker, *WHOLE)
    for text in (page(pair.broker), one(pair.broker)):
        assert reverse("topology:topology", args=[pair.slug]) in text
        assert ">Adopt topology</button>" not in text


def test_a_viewer_sees_it_and_is_not_offered_to_adopt(broker: Broker) -> None:
    know(broker, *WHOLE)
    assert ">Adopt topology</button>" not in page(broker, Role.VIEWER)
    assert "needs the role operator" in one(broker, Role.VIEWER)


def test_one_shows_its_picture_and_its_differences_argument_by_argument(broker: Broker) -> None:
    rest = WHOLE.without([LOST.identity, ("queue", "orders")])
    know(broker, *rest, ODD)
    text = one(broker)
    assert "<svg" in text
    assert "1 of 6 objects missing" in text
    assert "Binding from orders to queue orders with key orders" in text
    cells = ("Quorum queue orders", "x-queue-type", ">classic<", ">quorum<", "as declared")
    assert [cell for cell in cells if cell not in text] == []
    assert "you cannot apply the plan" in text
    assert ">Adopt topology</button>" in text


def test_one_that_is_gone_says_so(broker: Broker) -> None:
    know(broker, *WHOLE)
    assert "Topology not found" in one(broker, name="other")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "n" * 249, "a/b ü漢&x=1", '"><b>'])
def test_hostile_names_are_only_text(broker: Broker, name: str) -> None:
    strangers = [Exchange(f"{name}2"), a_queue(f"{name}3"), Binding(f"{name}2", f"{name}3", name)]
    know(broker, *retry_pair.definitions(retry_pair_params.Params(name)), *strangers)
    for text in (page(broker), page(broker, q=name), one(broker, name=name)):
        assert escape(name) in text
        assert "<script>alert" not in text
        assert "<b>" not in text


def test_an_empty_vhost_and_one_of_strangers_say_so(broker: Broker) -> None:
    know(broker)
    assert "No objects" in page(broker)
    know(broker, Exchange("x"), Queue("<q>"), error="", **{"<q>": 7})
    text = page(broker)
    assert "No topology recognized" in text
    assert "1 exchange, 1 queue" in text
    assert "Classic queue &lt;q&gt;" in text


def test_a_broker_that_never_answered_and_one_that_stopped_say_so(broker: Broker) -> None:
    assert "No data yet" in page(broker)
    know(broker, *WHOLE, error="It went away.")
    text = page(broker)
    assert "It went away." in text
    assert "Complete" in text


def test_the_list_is_filtered_by_kind_and_by_name(broker: Broker) -> None:
    know(
        broker,
        *WHOLE,
        *delay_levels.definitions(delay_levels_params.Params("nsb-v2")),
        Queue("other"),
    )
    assert ">orders</a>" not in page(broker, kind="delay_levels")
    assert ">orders</a>" in page(broker, q="ORDERS-RE")
    text = page(broker, q="nowhere")
    assert "No topology matches" in text
    assert "No object matches this name." in text


def test_what_would_claim_too_much_is_filtered_too(broker: Broker) -> None:
    uses = (
        Use("retry_loop", "orders", None, frozenset([("queue", "orders")])),
        Use("delay_queues", "late", None, frozenset([("queue", "hold-late")])),
    )
    seen = recognize(know(broker, *WHOLE))
    overlapping = replace(seen, overlapping=uses)
    with patch("topology.views.brokers.discovered_topologies.recognize", lambda _: overlapping):
        assert "2 more topologies overlap" in page(broker)
        assert "1 more topologies overlap" in page(broker, kind="delay_queues")
        text = page(broker, q="HOLD-")
        assert "1 more topologies overlap" in text
        assert ">late</span>" in text
        assert "more topologies overlap" not in page(broker, kind="busy_wait")


def test_the_work_queue_of_what_was_found_is_said_to_be_that(broker: Broker) -> None:
    late = delay_queues.definitions(delay_queues_params.Params("mails", (timedelta(seconds=10),)))
    know(broker, *late, Queue("mails"))
    text = page(broker)
    assert "1 queue that is the work queue of recognized topologies" in text
    assert "unmanaged objects" not in text
    assert "the work queue of" in page(broker, q="mail", kind="delay_queues")
    assert "the work queue of" not in page(broker, q="orders")
    assert "the work queue of" not in page(broker, kind="busy_wait")


@responses.activate
def test_the_second_of_two_loops_on_one_input_can_be_adopted_and_leaves_no_strangers(
    broker: Broker,
) -> None:
    one = retry_loop.parse({"name": "a", "input_exchange": "in"})
    both = retry_loop.definitions(one) | retry_loop.definitions(replace(one, input_queue="b"))
    broker_says(others=tuple(both))
    assert "Delayboard changed nothing in the broker" in text_of(
        adopt(broker, kind="retry_loop", name="b")
    )
    assert [row.name for row in Topology.objects.all()] == ["b"]
    Topology.objects.all().delete()
    know(broker, *both)
    text = page(broker)
    assert text.count(">Adopt topology</button>") == 2
    assert "unmanaged objects" not in text
    assert "would claim" not in text


def test_what_we_manage_is_no_stranger_though_it_is_not_recognised(broker: Broker) -> None:
    make_pair(broker)
    know(broker, Queue("orders-retry"), Exchange("orders"), Queue("other"))
    assert "1 queue. They are not part" in page(broker)
    Topology.objects.update(state=State.DELETED)
    assert "1 exchange, 2 queues. They are not part" in page(broker)


def test_adopting_stands_beside_the_name_where_a_narrow_screen_shows_it(broker: Broker) -> None:
    know(broker, *WHOLE)
    text = page(broker)
    adopt = text.index(">Adopt topology</button>")
    assert text.index(">orders</a>") < adopt < text.index("Complete")


@pytest.mark.parametrize("first", ["-1", "x", "99999999999999999999", "1e3"])
def test_an_odd_place_in_the_list_is_its_beginning(broker: Broker, first: str) -> None:
    know(broker, *WHOLE)
    assert ">orders</a>" in page(broker, Role.OPERATOR, page=first)


def test_of_thousands_a_page_shows_fifty_and_says_so(broker: Broker) -> None:
    know(broker, *crowd(0.2))
    first = eventually(lambda: text if "Adopt" in (text := page(broker)) else "", "it is ready")
    assert first.count(">Adopt topology</button>") == 50
    assert "Showing 1 to 50 of 804." in first
    assert "Showing 50 of" in first
    last = page(broker, Role.OPERATOR, page="17")
    assert last.count(">Adopt topology</button>") == 4
    assert "Last page" in last


def test_of_thousands_a_page_does_not_wait_until_they_are_recognised(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, asked = Event(), []

    def slow(snapshot: Snapshot) -> Recognition:
        asked.append(snapshot)
        assert may_end.wait(60)
        return recognize(snapshot)

    monkeypatch.setattr("topology.views.brokers.discovered_topologies.recognize", slow)
    monkeypatch.setattr("topology.views.background.AT_ONCE", 5)
    know(broker, *WHOLE)
    for text in (page(broker), page(broker, q="orders"), one(broker)):
        assert "Analysis in progress" in text
        assert 'http-equiv="refresh"' in text
        assert "No objects" not in text
    assert f'href="{reverse("topology:discovered", args=[broker.slug])}?q=orders"' in page(
        broker, q="orders"
    )
    assert len(asked) == 1
    may_end.set()
    text = eventually(lambda: text if "Complete" in (text := page(broker)) else "", "it is ready")
    assert 'http-equiv="refresh"' not in text
    assert len(asked) == 1


def test_retries_that_are_no_pattern_are_listed_explained_and_adopted(broker: Broker) -> None:
    know(
        broker,
        a_queue("mail", dlx="", key="mail.waiting"),
        a_queue("mail.waiting", ttl=5000, dlx="", key="mail"),
        error="",
        **{"mail.waiting": 7},
    )
    text = page(broker)
    assert ">Complete</span>" in text
    assert ">Adopt topology</button>" in text
    assert '<td data-label="Waiting" class="number">7</td>' in text
    text = page(broker, kind="retry_chain", name="mail")
    assert "Failed messages of mail wait 5s in mail.waiting, then return." in text
    assert "No tap observes" in text
    assert "7 messages" in text


def test_what_a_chain_needs_and_has_not_is_listed(broker: Broker) -> None:
    know(broker, a_queue("work", dlx="work-retry"), a_queue("work-retry", ttl=5000, dlx="work"))
    assert "1 object missing" in page(broker)
    text = page(broker, kind="retry_chain", name="work")
    assert "The exchange “work” is missing, so RabbitMQ drops messages after their delay." in text


def test_what_two_loops_share_is_counted_once_in_all(broker: Broker) -> None:
    one = retry_loop.parse({"name": "a", "input_exchange": "in"})
    both = retry_loop.definitions(one) | retry_loop.definitions(replace(one, input_queue="b"))
    know(broker, *both, error="", **{one.dead_queue: 4})
    text = page(broker)
    assert (
        text.count(
            '<td data-label="Waiting" class="number">4<br><span class="quiet">shared</span></td>'
        )
        == 2
    )
    assert "<strong>4</strong><span>messages waiting in recognized topologies</span>" in text
    text = page(broker, kind="retry_loop", name="b")
    assert '4 messages, shared by <span class="name">a_input_q</span>' in text


def test_a_name_that_nobody_sees_has_something_to_see_beside_it(broker: Broker) -> None:
    odd = a_queue("  ", dlx="", key="a\u202eb"), a_queue("a\u202eb", ttl=5, dlx="", key="  ")
    know(broker, *odd, Queue("\u3000"), Exchange("a\u200b"))
    text = page(broker)
    for reported in ("(blank: U+0020)", "(blank: U+3000)", "(contains U+200B)"):
        assert f'<span class="invisible">{reported}</span>' in text
    assert "(blank: U+0020)" in one(broker, name="  ")


@responses.activate
def test_adopting_leads_to_the_topology_which_says_that_it_is_not_recorded(broker: Broker) -> None:
    broker_says(others=tuple(WHOLE))
    text = text_of(adopt(broker))
    assert "Topology adopted. Delayboard changed nothing in the broker." in text
    assert "In sync" in text
    (row,) = Topology.objects.all()
    settings = reverse("topology:topology_settings", args=[row.slug])
    assert "it covers only new messages" in text_of(signed_in(Role.OPERATOR).get(settings))
    assert {call.request.method for call in responses.calls} == {"GET"}


@responses.activate
def test_adopting_an_incomplete_one_shows_its_plan(broker: Broker) -> None:
    broker_says(others=tuple(WHOLE.without([LOST.identity])))
    text = text_of(adopt(broker))
    assert "The plan lists the missing objects." in text
    assert "Adopted, incomplete" in text
    assert "New: binding from orders to queue orders" in text


@responses.activate
def test_what_cannot_be_adopted_is_said_on_the_page_it_came_from(broker: Broker) -> None:
    broker_says()
    text = text_of(adopt(broker))
    assert "Topology not adopted. Test broker no longer has “orders” of this pattern." in text
    assert Topology.objects.count() == 0


def test_adopting_from_a_broker_that_does_not_answer_is_said(broker: Broker) -> None:
    assert "Topology not adopted. " in text_of(adopt(broker))
    assert Topology.objects.count() == 0


def test_a_viewer_may_neither_adopt_nor_record(pair: Topology) -> None:
    assert adopt(pair.broker, Role.VIEWER).status_code == 403
    address = reverse("topology:topology_record", args=[pair.slug])
    assert signed_in(Role.VIEWER).post(address).status_code == 403


@responses.activate
def test_record_it_makes_the_tap_and_the_page_no_longer_offers_it(broker: Broker) -> None:
    broker_says(others=tuple(WHOLE))
    takes_changes()
    adopt(broker)
    topology = Topology.objects.get()
    address = reverse("topology:topology_record", args=[topology.slug])
    answer = signed_in(Role.OPERATOR).post(address, follow=True)
    text = text_of(answer)
    assert "Recording enabled." in text
    assert "does not record messages" not in text
    topology.refresh_from_db()
    assert topology.tap_type == "classic"


def test_recording_what_is_recorded_already_is_refused_with_a_sentence(pair: Topology) -> None:
    address = reverse("topology:topology_record", args=[pair.slug])
    text = text_of(signed_in(Role.OPERATOR).post(address, follow=True))
    assert "Recording not enabled. This topology has no more messages to record" in text


def test_a_torn_down_one_may_be_adopted_again(broker: Broker) -> None:
    make_pair(broker)
    Topology.objects.update(state=State.DELETED)
    know(broker, *Definitions.of(WHOLE))
    assert ">Adopt topology</button>" in one(broker)


@responses.activate
def test_one_that_others_pass_on_says_whose_consumer_does_it(broker: Broker) -> None:
    params = busy_wait.EXAMPLE
    whole = busy_wait.definitions(params) | Definitions.of([Queue(params.queue)])
    broker_says(others=tuple(whole))
    text = text_of(adopt(broker, kind="busy_wait", name=busy_wait.title(params)))
    assert "The original consumer forwards the messages" in text


@pytest.mark.parametrize(
    ("state", "heading"),
    [
        (State.APPLIED, "Adopted, incomplete"),
        (State.APPLYING, "The last apply did not finish."),
        (State.DELETED, "You cannot apply this topology again."),
    ],
)
def test_one_that_was_adopted_and_completed_says_how_it_stands(
    broker: Broker, state: State, heading: str
) -> None:
    know(broker, *WHOLE.without([LOST.identity]))
    row = take_over(
        None, broker, "retry_pair", retry_pair_params.Params("orders", timedelta(seconds=5))
    )
    row.own([LOST.identity])
    row.state = state
    row.save()
    text = text_of(signed_in(Role.OPERATOR).get(reverse("topology:topology", args=[row.slug])))
    assert heading in text
    assert "The objects in the broker changed since the topology was applied" not in text
    assert ("Adoption changed nothing in the broker" in text) is (state == State.APPLIED)
    assert '<span class="tag">adopted</span>' in text
