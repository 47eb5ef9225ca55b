"""TLS that refuses, and the plugin that is missing: one sentence for each cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.faults.odd_node import OddNode, strict_node
from topology.broker.address import Address
from topology.operations.connect import try_connection

CONNECTED = "Connected to the virtual host"
PLUGIN = "rabbitmq-plugins enable rabbitmq_management"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OddNode]:
    with strict_node(tmp_path_factory.mktemp("strict")) as running:
        yield running


def sentences(address: Address) -> list[str]:
    return [trial.sentence for trial in try_connection(address)]


def on(host: str, address: Address) -> Address:
    url = address.management_url.replace(address.host, host)
    return replace(address, host=host, management_url=url)


def assert_said_of_both(address: Address, cause: str, step: str) -> None:
    for sentence in sentences(address):
        assert cause in sentence
        assert step in sentence
        assert PLUGIN not in sentence


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_each_refusal_of_tls_is_told_from_the_others(strict: OddNode) -> None:
    known = replace(strict.secure, ca_certificate=strict.certificate)
    assert_said_of_both(strict.secure, "is not trusted", "Enter the CA certificate")
    assert_said_of_both(known, "is for another host", "Enter a host name")
    assert_said_of_both(on("localhost", known), "has expired", "Renew the certificate")
    unverified = replace(strict.secure, verify_tls=False)
    assert_said_of_both(
        unverified, "requires a client certificate", "Enter a client certificate and its key"
    )


def test_no_tls_where_it_is_required(strict: OddNode) -> None:
    url = strict.secure.management_url.replace("https:", "http:")
    amqp, api = sentences(replace(strict.secure, tls=False, management_url=url))
    assert "does not speak AMQP 0-9-1 without TLS. Check port and TLS." in amqp
    assert "needs TLS. Enter an address with https." in api


def test_the_plugin_is_named_only_where_it_can_be_the_cause(strict: OddNode) -> None:
    """Nothing listens at its port while AMQP answers, or another plugin's port answers with 404."""
    amqp, api = sentences(replace(strict.plain, management_url="http://127.0.0.1:9"))
    assert CONNECTED in amqp
    assert "RabbitMQ runs, but nothing listens at http://127.0.0.1:9" in api
    assert PLUGIN in api
    (_, api) = sentences(replace(strict.plain, management_url=strict.metrics_url))
    assert "has no management API" in api
    assert PLUGIN in api


def test_http_on_the_port_of_amqp(strict: OddNode) -> None:
    amqp_url = f"http://127.0.0.1:{strict.plain.port}"
    _, api = sentences(replace(strict.plain, management_url=amqp_url))
    # RabbitMQ closes the connection, often before its answer is read.
    assert "is for AMQP" in api or "is not that of AMQP" in api
    assert PLUGIN not in api
