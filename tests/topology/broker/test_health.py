"""Several addresses of one broker: tried in turn, and those that do not answer last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.hostile_management import (
    TRICKLE_SECONDS,
    Attack,
    Hostile,
    Visit,
    hostile_management,
    saying,
)
from topology.broker import health, tokens
from topology.broker.address import Address, SignIn
from topology.broker.amqp import connection
from topology.broker.amqp.connection import open_connection
from topology.broker.errors import NotFound, Refused, Unreachable
from topology.broker.management.client import Management
from topology.broker.probe_nodes import probe_nodes
from topology.broker.tokens import Token
from topology.definitions import Queue

# Nothing listens there.
DEAD, ALSO_DEAD = "http://127.0.0.1:9", "http://127.0.0.1:11"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    health._failures.clear()
    yield
    health._failures.clear()


@pytest.fixture(name="sound")
def _sound() -> Iterator[Hostile]:
    with hostile_management(saying()) as server:
        yield server


@pytest.fixture(name="other")
def _other() -> Iterator[Hostile]:
    with hostile_management(saying()) as server:
        yield server


def at(*urls: str) -> Address:
    return Address("127.0.0.1", 9, "/", "u", "p", urls[0], other_management_urls=urls[1:])


def answer_with(status: int, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def lost_plugin(visit: Visit) -> None:
    visit.send(answer_with(404, b"no such page", "text/html"))


def cannot_serve(visit: Visit) -> None:
    visit.send(answer_with(503, b'{"reason": "no quorum"}'))


def has_no_such_object(visit: Visit) -> None:
    visit.send(answer_with(404, b'{"reason": "Not Found"}'))


def refuses(visit: Visit) -> None:
    visit.send(answer_with(401, b'{"reason": "Login failed"}'))


def says_nothing(visit: Visit) -> None:
    visit.stop.wait(10)


def test_the_next_address_is_called_where_nothing_listens(sound: Hostile) -> None:
    with Management(at(DEAD, ALSO_DEAD, sound.url)) as management:
        assert management.overview()["node"] == "rabbit@hostile"
        assert management.node.management_url == sound.url


def test_a_dead_address_is_not_tried_first_again_for_a_while(
    sound: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = at(DEAD, sound.url)

    def order() -> list[str]:
        nodes = health.order_nodes(address.management_nodes, "management")
        return [node.management_url for node in nodes]

    with Management(address) as management:
        management.overview()
    assert order() == [sound.url, DEAD]
    monkeypatch.setattr(health, "DOUBTED_SECONDS", 0.0)
    assert order() == [DEAD, sound.url]


def test_what_another_process_found_counts_after_what_this_one_found(sound: Hostile) -> None:
    address = Address(
        *("127.0.0.1", 9, "/", "u", "p", DEAD),
        other_management_urls=(ALSO_DEAD, sound.url),
        doubted=frozenset({ALSO_DEAD}),
    )
    with Management(address) as management:
        management.overview()
    nodes = health.order_nodes(address.management_nodes, "management")
    assert [node.management_url for node in nodes] == [sound.url, ALSO_DEAD, DEAD]


@pytest.mark.parametrize("attack", [lost_plugin, cannot_serve])
def test_a_node_that_lost_its_plugin_or_cannot_serve_is_passed_over(
    sound: Hostile, other: Hostile, attack: Attack
) -> None:
    other.attack = attack
    with Management(at(other.url, sound.url)) as management:
        assert management.overview()["node"] == "rabbit@hostile"


@pytest.mark.parametrize(("attack", "error"), [(refuses, Refused), (has_no_such_object, NotFound)])
def test_an_answer_that_refuses_is_an_answer(
    sound: Hostile, other: Hostile, attack: Attack, error: type[Exception]
) -> None:
    other.attack = attack
    with Management(at(other.url, sound.url)) as management, pytest.raises(error):
        management.queue("q")
    assert sound.visits == 0


def test_a_silent_node_ends_the_call_and_is_called_last_from_then_on(
    sound: Hostile, other: Hostile
) -> None:
    other.attack = says_nothing
    with Management(at(other.url, sound.url), seconds=0.5) as management:
        with pytest.raises(Unreachable, match="did not answer in time"):
            management.overview()
        assert management.overview()["node"] == "rabbit@hostile"


def test_a_change_goes_to_another_node_only_where_the_first_never_got_it(
    sound: Hostile, other: Hostile
) -> None:
    with Management(at(DEAD, sound.url)) as management:
        management.declare_queue(Queue("q"))
    assert sound.visits == 1
    other.attack = cannot_serve
    with (
        Management(at(other.url, sound.url)) as management,
        pytest.raises(Unreachable, match="no quorum"),
    ):
        management.declare_queue(Queue("q"))
    assert sound.visits == 1


def test_one_sentence_names_every_address_with_its_reason(other: Hostile) -> None:
    other.attack = lost_plugin
    with (
        Management(at(DEAD, other.url)) as management,
        pytest.raises(Unreachable) as raised,
    ):
        management.overview()
    assert str(raised.value) == (
        f"None of the 2 management addresses answers ({DEAD}: Nothing listens; {other.url}: The "
        "server has no management API)."
    )
    address = Address("127.0.0.1", 9, "/", "u", "p", others=(("127.0.0.1", 11),))
    with pytest.raises(Unreachable) as raised:
        open_connection(address, "test").__enter__()
    assert str(raised.value) == (
        "None of the 2 AMQP addresses answers (127.0.0.1:9: Nothing listens; 127.0.0.1:11: Nothing "
        "listens)."
    )


def test_a_single_address_keeps_its_own_sentence() -> None:
    with Management(at(DEAD)) as management, pytest.raises(Unreachable) as raised:
        management.overview()
    assert str(raised.value).startswith(f"Nothing listens at {DEAD}. Check that RabbitMQ runs")


def test_probes_name_what_does_not_answer_and_why(sound: Hostile, other: Hostile) -> None:
    other.attack = says_nothing
    found = probe_nodes(at(sound.url, DEAD, other.url))
    assert found == {
        "127.0.0.1:9": "Nothing listens",
        DEAD: "Nothing listens",
        other.url: "The management API did not answer in time",
    }


def test_a_probe_takes_a_refusal_for_an_answer(other: Hostile) -> None:
    other.attack = refuses
    assert set(probe_nodes(at(other.url, DEAD))) == {"127.0.0.1:9", DEAD}


def seeing(*running: bool) -> Attack:
    return saying(nodes=[{"name": f"n{at}", "running": on} for at, on in enumerate(running)])


def test_a_node_that_lost_its_cluster_counts_as_silent_while_another_has_the_majority(
    sound: Hostile, other: Hostile
) -> None:
    sound.attack, other.attack = seeing(True, True, False), seeing(False, False, True)
    address = Address(
        *("127.0.0.1", 9, "/", "u", "p", other.url),
        others=(("127.0.0.1", 11),),
        other_management_urls=(sound.url,),
    )
    found = probe_nodes(address)
    assert found[other.url] == "Its node sees only 1 of 3 nodes of the cluster"
    assert sound.url not in found
    assert health.is_cut_off("127.0.0.1:9")
    assert not health.is_cut_off("127.0.0.1:11")
    with Management(address) as management:
        management.overview()
        assert management.node.management_url == sound.url


def test_the_last_node_that_runs_is_used_whatever_it_sees(other: Hostile) -> None:
    other.attack = seeing(False, False, True)
    assert other.url not in probe_nodes(at(DEAD, other.url))


def with_token_of(url: str, *urls: str) -> Address:
    return replace(at(*urls), sign_in=SignIn.TOKEN, token_url=url)


def test_a_failure_of_the_token_endpoint_is_none_of_an_address(sound: Hostile) -> None:
    address = with_token_of(f"{DEAD}/token", sound.url, ALSO_DEAD)
    with pytest.raises(Unreachable, match="token endpoint"):
        probe_nodes(address)
    assert not health._failures
    assert sound.visits == 0


def test_a_token_is_requested_within_the_limits_however_its_address_is_typed(
    sound: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests rewrites the address, here its host and its path. The answer comes too late."""
    monkeypatch.setattr(tokens, "REQUEST_SECONDS", 10 * TRICKLE_SECONDS)
    sound.attack = trickles
    url = sound.url.replace("127.0.0.1", "LOCALHOST") + "/%7etoken"
    with pytest.raises(Unreachable, match="does not answer"):
        tokens.get_token(with_token_of(url, sound.url))


def trickles(visit: Visit) -> None:
    visit.trickle(iter([b"HTTP/1.1 200 OK\r\nA: ", *[b"a"] * 30, b"\r\n"]))
    body = b'{"access_token": "t"}'
    visit.send(answer_with(200, body).partition(b"\r\n")[2])


def test_a_connection_whose_token_has_ended_asks_for_the_next_one_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(connection, "call_later", lambda _, seconds, act: pauses.append(seconds))
    for left in (0.0, 8.0, 600.0):
        token = Token("t", time.monotonic() + left, left)
        monkeypatch.setattr(connection, "get_token", lambda _, token=token: token)
        opened: Any = SimpleNamespace(is_open=True)
        connection._TokenRenewal(opened, at(DEAD)).check()
    assert pauses == [0.25, pytest.approx(2.0, abs=0.5), 5.0]
