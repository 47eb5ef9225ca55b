from __future__ import annotations

import json
import re
import time
from contextlib import nullcontext
from datetime import timedelta
from html import unescape

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.urls import reverse

from tests.builders import make_tapped
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology import snapshots
from topology.definitions import DELAYED_TYPE, Arguments, Binding, Exchange, Queue
from topology.models import Broker, Role, State, Topology
from topology.operations.topology_rows import create_topology, take_over
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.table import PATTERNS

pytestmark = pytest.mark.django_db

SHOP = (
    Exchange("orders"),
    Exchange("audit", "fanout"),
    a_queue("work"),
    a_queue("copies"),
    a_queue("hold", ttl=90_000, dlx="orders", key="work"),
    Binding("orders", "work", "work"),
    Binding("orders", "audit", "work", destination_is_queue=False),
    Binding("audit", "copies", ""),
)


def asked(broker: Broker, **query: str) -> str:
    address = reverse("topology:trace_route", args=[broker.slug])
    return text_of(signed_in(Role.VIEWER).get(address, query))


def test_the_way_is_told_hop_by_hop_and_drawn_with_its_times(broker: Broker) -> None:
    know(broker, *SHOP, a_queue("elsewhere"))
    text = asked(broker, exchange="", routing_key="hold")
    assert "2 copies, each with its own path." in text
    assert 'Waits 1m 30s in <span class="name">hold</span>' in text
    assert "after 1m 30s" in text
    assert '<strong>Delivered</strong> to <span class="name">work</span>: the message' in text
    assert "Remains in" not in text
    for step in ("1: at once", "2: after 1m 30s", "3: after 1m 30s"):
        assert step in text
    assert 'data-key="queue/copies"' in text
    assert "elsewhere" not in text


def test_a_topology_opens_the_form_with_a_publish_of_its_own(
    broker: Broker, pair: Topology
) -> None:
    client = signed_in(Role.VIEWER)

    def link(topology: Topology) -> str:
        text = text_of(client.get(reverse("topology:topology", args=[topology.slug])))
        (address,) = re.findall('href="([^"]+)">Trace route</a>', text)
        return unescape(address)

    params = busy_wait_params.Params("calls", (timedelta(seconds=15),))
    wait = make_tapped(broker, busy_wait_params.KIND, params)
    levels = make_tapped(broker, "delay_levels", PATTERNS["delay_levels"].EXAMPLE)
    know(broker, *pair.definitions, *wait.definitions, *levels.definitions)
    assert "Waits 15s in" in text_of(client.get(link(pair)))
    # Its header is part of the route.
    assert "due-at-ms" in text_of(client.get(link(wait)))
    # Nothing is bound to the levels yet: no publish reaches a destination.
    assert link(levels) == reverse("topology:trace_route", args=[broker.slug])


def test_a_publish_that_nobody_takes_is_said_to_be_lost(broker: Broker) -> None:
    know(broker, *SHOP)
    text = asked(broker, exchange="orders", routing_key="<b>nobody</b>")
    assert "No queue receives the message." in text
    assert "<strong>Lost</strong>" in text
    assert "<b>nobody" not in text


def test_headers_expiration_and_rejections_count(broker: Broker) -> None:
    know(broker, *SHOP)
    text = asked(broker, exchange="", routing_key="hold", expiration="5")
    assert 'Waits 5ms in <span class="name">hold</span>' in text
    text = asked(broker, exchange="orders", routing_key="work", headers='{"CC": ["x"]}')
    assert "2 copies" in text
    text = asked(broker, routing_key="work", rejecting="work")
    assert (
        "the consumer of “work” rejects the message, and this queue has no dead-letter exchange"
        in text
    )


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"headers": "{"}, "are not JSON"),
        ({"headers": '{"CC": ["\\ud800"]}'}, "contains an invalid Unicode character"),
        ({"routing_key": "x" * 256}, "at most 255 characters"),
        ({"routing_key": "work", "expiration": "soon"}, "is not a whole number of milliseconds"),
    ],
)
def test_what_cannot_be_asked_is_said(broker: Broker, query: dict[str, str], said: str) -> None:
    know(broker, *SHOP)
    assert said in asked(broker, **query)


def test_without_an_answer_of_the_broker_no_way_is_made_up(broker: Broker) -> None:
    text = asked(broker, routing_key="work")
    assert "are not available" in text
    assert "Lost" not in text


def test_the_command_tells_the_same_and_as_json(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    know(broker, *SHOP)
    monkeypatch.setattr(snapshots, "poll", lambda broker, patience: snapshots.latest(broker.pk))
    call_command("walk", broker.slug, "", "hold")
    reported = capsys.readouterr().out
    assert "at once: waits 1m 30s in hold, through the default exchange with 'hold'" in reported
    assert "delivered: the message waits for a consumer" in reported
    call_command("walk", broker.slug, "", "hold", "--json")
    answer = json.loads(capsys.readouterr().out)
    ends = {(o["ending"], o["queue"], o["after_ms"]) for o in answer["outcomes"]}
    assert ends == {("delivered", "work", 90_000), ("delivered", "copies", 90_000)}
    assert answer["routed"] is True
    assert [hop["wait_ms"] for hop in answer["outcomes"][0]["hops"]] == [90_000, None]


HOOKS = busy_wait_params.Params("hooks", (timedelta(minutes=1), timedelta(minutes=5)))
WAITS = "hooks-busy-wait"


def a_busy_wait(broker: Broker) -> None:
    know(broker, *busy_wait.definitions(HOOKS), a_queue("hooks"))


def test_our_forwarder_takes_the_way_on_and_is_drawn(broker: Broker) -> None:
    a_busy_wait(broker)
    row = create_topology(None, broker, busy_wait.KIND, HOOKS)
    planned = asked(broker, routing_key=WAITS)
    assert 'data-key="queue/hooks"' not in planned
    row.state = State.APPLIED
    row.save()
    text = asked(broker, routing_key=WAITS)
    assert "due: the forwarder of hooks-busy-wait forwards the message" in text
    assert 'data-key="queue/hooks"' in text
    assert "edge-forwarder" in text


def test_a_forwarder_of_others_is_said_to_be_one(broker: Broker) -> None:
    a_busy_wait(broker)
    take_over(None, broker, busy_wait.KIND, HOOKS)
    text = asked(broker, routing_key=WAITS)
    assert "an external consumer forwards due messages to “hooks”" in text
    assert 'data-key="queue/hooks"' not in text


def test_the_command_goes_through_our_forwarder_by_the_moment_in_the_header(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_busy_wait(broker)
    create_topology(None, broker, busy_wait.KIND, HOOKS)
    Topology.objects.update(state=State.APPLIED)
    monkeypatch.setattr(snapshots, "poll", lambda broker, patience: snapshots.latest(broker.pk))
    due_ms = time.time_ns() // 1_000_000 + 90_000
    (forwarder,) = busy_wait.forwarders(HOOKS)
    headers = json.dumps({forwarder.due_header: due_ms})
    call_command("walk", broker.slug, "", WAITS, "--headers", headers, "--json")
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert (outcome["queue"], outcome["after_ms"]) == ("hooks", 120_000)


def test_what_a_delayed_exchange_keeps_is_told_on_the_page_and_by_the_command(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Exchange("later", DELAYED_TYPE, arguments=Arguments({"x-delayed-type": "direct"}))
    know(broker, *SHOP, later, Binding("later", "work", "k"))
    for key in ("k", "nobody"):
        text = asked(broker, exchange="later", routing_key=key, headers='{"x-delay": 40}')
        assert "stored by the exchange “later” for 40ms" in text
    monkeypatch.setattr(snapshots, "poll", lambda broker, patience: snapshots.latest(broker.pk))
    for key in ("k", "nobody"):
        with pytest.raises(SystemExit) if key == "nobody" else nullcontext():
            call_command("walk", broker.slug, "later", key, "--headers", '{"x-delay": 40}')
        assert "stored by the exchange “later” for 40ms" in capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    ("exchange", "key", "code"),
    [("", "hold", 0), ("nowhere", "k", 1), ("", "nobody", 1), ("both", "k", 3)],
)
def test_the_commands_exit_code_tells_whether_every_copy_is_delivered(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    form: list[str],
    exchange: str,
    key: str,
    code: int,
) -> None:
    lost = Queue("lost", arguments=Arguments({"x-message-ttl": 5}))
    ways = [Binding("both", queue, "") for queue in ("work", "lost")]
    know(broker, *SHOP, Exchange("both", "fanout"), lost, *ways)
    monkeypatch.setattr(snapshots, "poll", lambda broker, patience: snapshots.latest(broker.pk))
    with pytest.raises(SystemExit) if code else nullcontext() as ended:
        call_command("walk", broker.slug, exchange, key, *form)
    assert (ended.value.code if ended else 0) == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody", "", "x"], "The broker “nobody” does not exist. Existing brokers: test-broker."),
        (["test-broker", "", "x", "--headers", "{"], "The headers are not JSON"),
        (["test-broker", "", "x", "--headers", "[]"], "must be a JSON object"),
        (["test-broker", "", "x", "--headers", '{"CC": ["\\ud800"]}'], "invalid Unicode character"),
    ],
)
def test_the_command_refuses_with_a_sentence(
    broker: Broker, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(broker, *SHOP)
    monkeypatch.setattr(snapshots, "poll", lambda broker, patience: snapshots.latest(broker.pk))
    with pytest.raises(CommandError, match=said.replace("(", r"\(")):
        call_command("walk", *arguments)


def test_a_name_from_right_to_left_is_set_apart_in_the_sentences(broker: Broker) -> None:
    name = "\u05d0\u05d1"
    know(broker, a_queue(name, ttl=5000))
    text = asked(broker, routing_key=name)
    assert f"the message expires in “\u2068{name}\u2069” after 5s" in text
