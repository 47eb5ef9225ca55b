"""Client certificates and OAuth 2 tokens at a real RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from cryptography import x509

from tests.brokers import NEWEST, call_api
from tests.builders import eventually
from tests.faults.odd_node import Authority
from tests.publishing import publisher
from tests.real_broker.tls_node import CLIENT, SCOPE, TlsNode, tls_node
from topology.broker import tokens
from topology.broker.address import Address, SignIn
from topology.broker.amqp.connection import open_connection
from topology.broker.errors import BrokerError, Refused
from topology.broker.management.client import Management
from topology.message import Publish
from topology.operations.connect import try_connection

# What a bound on the lifetime of a token must leave a busy machine.
SHORT_SECONDS = 6


@pytest.fixture(
    scope="module", params=[NEWEST, pytest.param("4.0", marks=pytest.mark.long)], name="tls"
)
def _tls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsNode]:
    with tls_node(tmp_path_factory.mktemp("tls"), request.param) as running:
        yield running


def said(address: Address) -> list[tuple[bool, str]]:
    return [(trial.works, trial.sentence) for trial in try_connection(address)]


def name_users(tls: TlsNode) -> set[str]:
    return {one["user"] for one in call_api(tls.node, "GET", "connections") if "user" in one}


def test_both_protocols_show_the_client_certificate_and_check_the_server_name(
    tls: TlsNode,
) -> None:
    address = tls.with_certificate()
    assert [works for works, _ in said(address)] == [True, True]
    for wrong, words in (
        (replace(address, server_name=""), "is for another host"),
        (replace(address, client_certificate="", client_key=""), "requires a client certificate"),
    ):
        for works, sentence in said(wrong):
            assert not works
            assert words in sentence


def test_a_certificate_of_an_unknown_authority_is_refused(tls: TlsNode) -> None:
    other = Authority("other", x509.DNSName("other"))
    pem = other.certify(CLIENT, timedelta(days=1))
    address = replace(tls.secure, client_certificate=pem, client_key=other.key)
    for works, sentence in said(address):
        assert not works
        assert "trusts the CA of the client certificate" in sentence


def test_external_signs_in_as_the_common_name_of_the_certificate(tls: TlsNode) -> None:
    address = replace(tls.with_certificate(), sign_in=SignIn.CERTIFICATE)
    with open_connection(address, "test"):
        eventually(lambda: CLIENT in name_users(tls), "RabbitMQ names the user", seconds=30)
    assert [works for works, _ in said(address)] == [True, True]
    unknown = replace(tls.with_certificate("nobody"), sign_in=SignIn.CERTIFICATE)
    with pytest.raises(Refused, match="refused the client certificate") as raised:
        open_connection(unknown, "test").__enter__()
    assert "a user with the certificate's name" in str(raised.value)


def test_a_token_serves_both_protocols(tls: TlsNode) -> None:
    address = tls.with_token()
    assert [works for works, _ in said(address)] == [True, True]
    assert tls.issuer.asked[-1] == {"grant_type": ["client_credentials"], "scope": [SCOPE]}
    with publisher(address, "test") as channel, Management(address) as management:
        assert management.overview()["node"]
        with pytest.raises(BrokerError, match="has no queue"):
            channel.publish(Publish("", "nowhere"))


def test_one_token_is_requested_for_all_connections(tls: TlsNode) -> None:
    address = tls.with_token()
    tokens.get_token(address)
    before = tls.issuer.issued
    for _ in range(3):
        with open_connection(address, "test"):
            pass
    assert tls.issuer.issued == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"password": "wrong"}, "refused the client “board:1” (invalid_client)"),
        ({"token_url": "http://127.0.0.1:9/token"}, "does not answer. Check the token address"),
    ],
)
def test_what_the_token_endpoint_refuses_is_said_of_both_protocols(
    tls: TlsNode, change: dict[str, Any], words: str
) -> None:
    for works, sentence in said(replace(tls.with_token(), **change)):
        assert not works
        assert words in sentence


def test_a_connection_outlives_its_token(tls: TlsNode) -> None:
    """RabbitMQ gets each next token before the last one ends, and closes nothing."""
    tls.issuer.seconds = SHORT_SECONDS
    address = replace(tls.with_token(), token_scope=f"{SCOPE} openid")
    with open_connection(address, "test") as connection:
        channel = connection.channel()
        first = tls.issuer.issued
        ends_at = tokens.get_token(address).ends_at

        def has_outlived() -> bool:
            connection.process_data_events(0.1)
            return tls.issuer.issued > first + 1 and tokens.get_token(address).ends_at > ends_at

        eventually(has_outlived, "the second renewal", seconds=60)
        channel.queue_declare("outlived", auto_delete=True, exclusive=True)
    tls.issuer.seconds = 60


def test_without_a_new_token_rabbitmq_refuses_and_the_reason_is_given(
    tls: TlsNode,
) -> None:
    tls.issuer.seconds = SHORT_SECONDS
    address = replace(tls.with_token(), token_scope=f"{SCOPE} profile")

    def hold_a_connection() -> None:
        with open_connection(address, "test") as connection:
            tls.issuer.is_refusing = True
            channel = connection.channel()
            # 4.0 refuses what the token allowed, later ones close the connection too.
            declare = partial(channel.queue_declare, "short", exclusive=True)
            eventually(lambda: declare() is None, "RabbitMQ refuses it", seconds=60)

    try:
        with pytest.raises(BrokerError, match="expired"):
            hold_a_connection()
        with pytest.raises(Refused, match="refused the client"):
            open_connection(address, "test").__enter__()
    finally:
        tls.issuer.is_refusing, tls.issuer.seconds = False, 60
