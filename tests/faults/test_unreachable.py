"""What an operator reads when a broker cannot be used: a sentence, in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api
from tests.builders import address_of
from tests.stopwatch import stopwatch
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer
from topology.broker.errors import Unreachable
from topology.operations.connect import Trial, try_connection

LONGEST_SECONDS = 5.0


@pytest.fixture
def stranger(broker_node: PrivateNode) -> Iterator[tuple[str, str]]:
    """An account without a tag and without permissions."""
    name, password = "stranger", "a secret that nobody may read"
    call_api(broker_node, "PUT", f"users/{name}", {"password": password, "tags": ""})
    yield name, password
    call_api(broker_node, "DELETE", f"users/{name}")


def trials(address: Address) -> dict[str, Trial]:
    with stopwatch() as watch:
        found = {trial.name: trial for trial in try_connection(address)}
    assert watch.seconds < LONGEST_SECONDS
    return found


def test_a_sound_address_works_on_both_protocols(vhost: Vhost) -> None:
    assert all(trial.works for trial in trials(address_of(vhost)).values())


def test_a_wrong_password_is_said_and_never_shown(vhost: Vhost) -> None:
    found = trials(replace(address_of(vhost), password="wrong-and-secret"))
    assert "Check the user name and the password" in found["AMQP"].sentence
    assert "Check the user name and the password" in found["Management API"].sentence
    assert not any("wrong-and-secret" in trial.sentence for trial in found.values())


def test_a_port_where_nothing_listens(vhost: Vhost) -> None:
    found = trials(replace(address_of(vhost), port=9, management_url="http://127.0.0.1:9"))
    dead = "Nothing listens at {}127.0.0.1:9. Check that RabbitMQ runs, and check the port."
    assert found["AMQP"].sentence == dead.format("")
    assert found["Management API"].sentence == dead.format("http://")


def test_the_two_ports_mixed_up(vhost: Vhost, broker_node: PrivateNode) -> None:
    mixed = replace(
        address_of(vhost),
        port=broker_node.management_port,
        management_url=f"http://127.0.0.1:{broker_node.amqp_port}",
    )
    found = trials(mixed)
    assert not found["AMQP"].works
    assert "heck the AMQP port, TLS" in found["AMQP"].sentence
    assert not found["Management API"].works


def test_tls_where_there_is_none(vhost: Vhost) -> None:
    address = address_of(vhost)
    secure = address.management_url.replace("http://", "https://")
    found = trials(replace(address, tls=True, management_url=secure))
    assert all("Check that TLS is enabled" in trial.sentence for trial in found.values())


def test_a_host_that_does_not_exist(vhost: Vhost) -> None:
    found = trials(
        replace(
            address_of(vhost),
            host="rabbit.invalid",
            management_url="http://rabbit.invalid:15672",
        )
    )
    for trial in found.values():
        assert trial.sentence == "The host “rabbit.invalid” does not exist. Check the host name."


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_name_that_none_can_have_is_a_sentence_everywhere(vhost: Vhost, host: str) -> None:
    address = replace(address_of(vhost), host=host, management_url=f"http://{host}:15672")
    assert not any(trial.works for trial in trials(address).values())
    with pytest.raises(Unreachable), Consumer(address, "orders"):
        pass


def test_a_consumer_whose_thread_fails_in_an_unforeseen_way_says_so_and_never_hangs(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Consumer) -> None:
        raise RuntimeError("never seen before")

    monkeypatch.setattr(Consumer, "_start_consuming", fail)
    with pytest.raises(RuntimeError, match="never seen"), Consumer(address_of(vhost), "orders"):
        pass


def test_a_vhost_that_does_not_exist(vhost: Vhost) -> None:
    found = trials(replace(address_of(vhost), vhost="nowhere"))
    assert "virtual host “nowhere”" in found["AMQP"].sentence
    assert "The virtual host “nowhere” does not exist" in found["Management API"].sentence


def test_an_account_without_tag_and_permissions(vhost: Vhost, stranger: tuple[str, str]) -> None:
    name, password = stranger
    found = trials(replace(address_of(vhost), username=name, password=password))
    assert "cannot access the virtual host" in found["AMQP"].sentence
    assert "Add the tag “management”" in found["Management API"].sentence


@pytest.mark.generations("3.10", "4.3")
def test_an_account_with_the_tag_that_may_not_see_the_vhost(
    vhost: Vhost, broker_node: PrivateNode, stranger: tuple[str, str]
) -> None:
    name, password = stranger
    tagged = {"password": password, "tags": "management"}
    call_api(broker_node, "PUT", f"users/{quote(name)}", tagged)
    found = trials(replace(address_of(vhost), username=name, password=password))
    assert not found["AMQP"].works
    is_named = broker_node.version.startswith("3.")
    refusal = "has no permissions on the virtual host" if is_named else "has no access. Check the"
    assert refusal in found["Management API"].sentence
