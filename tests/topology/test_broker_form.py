"""A stored password goes only where it went before, and a host is one that can be."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from django.forms import ValidationError, model_to_dict

from tests.builders import make_broker
from tests.faults.odd_node import Authority
from topology.forms.broker import BrokerForm, check_host
from topology.models import Broker

AUTHORITY = Authority("ours", x509.DNSName("ours"))
AGAIN = "The address changed. Type the password again"


@pytest.fixture
def broker(db: None) -> Broker:
    broker = make_broker()
    broker.ca_certificate = AUTHORITY.pem
    broker.save()
    return broker


def problems(broker: Broker | None = None, **typed: Any) -> dict[str, list[str]]:
    values = model_to_dict(broker) if broker else {}
    form = BrokerForm(values | {"password": ""} | typed, instance=broker)
    return {name: list(map(str, found)) for name, found in form.errors.items()}


@pytest.mark.parametrize(
    "typed",
    [
        {"amqp_addresses": "elsewhere:9"},
        {"amqp_addresses": "127.0.0.1:5673"},
        {"amqp_addresses": "127.0.0.1:9, elsewhere:9"},
        {"management_urls": "http://elsewhere:15672"},
        {"management_urls": "http://127.0.0.1:9, http://elsewhere:15672"},
        {"server_name": "elsewhere"},
        {"tls": True},
        {"verify_tls": False},
        {"ca_certificate": ""},
        {"sign_in": "token", "token_url": "https://tokens.test/token"},
    ],
)
def test_another_address_asks_for_the_password_again(broker: Broker, typed: dict[str, Any]) -> None:
    assert problems(broker, **typed)["password"][0].startswith(AGAIN)
    assert problems(Broker.objects.get(), **typed, password="typed again") == {}


@pytest.mark.parametrize(
    "typed",
    [
        {"name": "Renamed", "colour": "red"},
        {"management_urls": "http://127.0.0.1:9/"},
        {"amqp_addresses": "127.0.0.1:9,"},
        {"ca_certificate": AUTHORITY.pem.replace("\n", "\r\n")},
    ],
)
def test_the_same_address_keeps_the_stored_password(broker: Broker, typed: dict[str, Any]) -> None:
    assert problems(broker, **typed) == {}


def test_an_amqp_uri_fills_the_fields_and_no_password_is_shown_again(db: None) -> None:
    values = {
        "name": "new",
        "environment": "test",
        "colour": "red",
        "vhost": "/",
        "verify_tls": "on",
    }
    typed = "amqps://ann:se%40cret@one:5673,two/shop"
    form = BrokerForm(values | {"amqp_addresses": typed})
    assert form.is_valid(), form.errors
    found = form.cleaned_data
    assert (found["amqp_addresses"], found["vhost"]) == ("one:5673, two:5671", "shop")
    assert (found["username"], found["password"], found["tls"]) == ("ann", "se@cret", True)
    for wrong in ("amqp://ann:secret@one:x/shop", "ann:secret@one"):
        form = BrokerForm(values | {"amqp_addresses": wrong})
        assert form.errors["amqp_addresses"]
        assert "secret" not in str(form.errors)
    assert "s3cr3t" not in str(BrokerForm(values | {"amqp_addresses": "amqp://a:s3cr3t@h:x"}))


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "a..b",
        ".a",
        "l" * 64,
        f"a.{'l' * 64}.b",
        "a b",
        "a\tb",
        "a\x1bb",
        "ü" * 63,
        "a\u2028b",
    ],
)
def test_what_cannot_be_a_host_is_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        check_host(host)


@pytest.mark.parametrize(
    "host", ["rabbit", "rabbit.test", "rabbit.test.", "l" * 63, "münchen.test", "::1", "10.0.0.1"]
)
def test_what_can_be_a_host_is_taken(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("amqp_addresses", "a..b"),
        ("amqp_addresses", "a:1:2x"),
        ("amqp_addresses", "a:0"),
        ("amqp_addresses", "one/x"),
        ("amqp_addresses", "u:p@one"),
        ("amqp_addresses", ","),
        ("amqp_addresses", "a\nb"),
        ("amqp_addresses", ",".join(f"h{number}" for number in range(17))),
        ("management_urls", "http://a..b:15672"),
        ("management_urls", f"http://{'l' * 64}:15672"),
        ("management_urls", "http://a\nb:15672"),
        ("management_urls", "http://a b:15672"),
    ],
)
def test_the_form_refuses_such_hosts_in_both_addresses(
    broker: Broker, name: str, text: str
) -> None:
    assert set(problems(broker, **{name: text}, password="typed again")) == {name}


def test_both_addresses_may_be_ipv6_literals(broker: Broker) -> None:
    typed = {"amqp_addresses": "::1", "management_urls": "http://[::1]:15672"}
    assert problems(broker, **typed, password="typed again") == {}


def typed_certificate(**changed: Any) -> dict[str, Any]:
    pem = AUTHORITY.certify("board", timedelta(days=9))
    typed = {
        "tls": True,
        "password": "typed again",
        "client_certificate": pem,
        "client_key": AUTHORITY.key,
    }
    return typed | changed


def with_passphrase(key: str) -> str:
    loaded = serialization.load_pem_private_key(key.encode(), None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    ).decode()


OTHER = Authority("other", x509.DNSName("other"))


@pytest.mark.parametrize(
    ("changed", "name", "words"),
    [
        ({"client_key": ""}, "client_key", "The private key of the client certificate is missing"),
        ({"client_key": "nonsense"}, "client_key", "is not readable PEM text"),
        ({"client_key": "\x00"}, "client_key", "Null characters are not allowed"),
        ({"client_key": OTHER.key}, "client_key", "does not belong to the client certificate"),
        ({"client_key": with_passphrase(AUTHORITY.key)}, "client_key", "has a passphrase"),
        ({"client_certificate": "nonsense"}, "client_certificate", "is not readable PEM text"),
        ({"ca_certificate": "nonsense"}, "ca_certificate", "is not readable PEM text"),
        ({"server_name": "a b"}, "server_name", "cannot contain blanks"),
        ({"sign_in": "certificate", "tls": False}, "tls", "A client certificate needs TLS"),
        (
            {"sign_in": "certificate", "client_certificate": ""},
            "client_certificate",
            "The client certificate is missing",
        ),
        ({"sign_in": "token"}, "token_url", "The token address is missing"),
        ({"sign_in": "token", "token_url": "ftp://x/"}, "token_url", "must look like https://"),
        ({"sign_in": "token", "token_url": "https://u:p@x/"}, "token_url", "must not contain"),
        ({"sign_in": "token", "token_url": "https://[x/"}, "token_url", "must look like https://"),
        ({"sign_in": "ticket"}, "sign_in", "Select a valid choice"),
    ],
)
def test_each_mistake_has_a_sentence_beside_its_field(
    broker: Broker, changed: dict[str, Any], name: str, words: str
) -> None:
    found = problems(broker, **typed_certificate(**changed))
    assert words in found[name][0]
    assert set(found) <= {name, "client_key"}


def test_a_key_is_encrypted_stays_without_being_typed_and_goes_with_its_certificate(
    broker: Broker,
) -> None:
    def save(**typed: Any) -> Broker:
        row = Broker.objects.get()
        form = BrokerForm(model_to_dict(row) | typed, instance=row)
        assert form.is_valid(), form.errors
        assert AUTHORITY.key.split("\n")[1] not in str(form)
        form.save()
        return Broker.objects.get()

    stored = save(**typed_certificate(sign_in="certificate"))
    assert AUTHORITY.key.strip() not in stored.sealed_client_key
    assert stored.address.client_key.split() == AUTHORITY.key.split()
    assert stored.address.sign_in == "certificate"
    assert save(name="Renamed").address.client_key.split() == AUTHORITY.key.split()
    gone = save(client_certificate="", sign_in="password", password="typed again")
    assert gone.sealed_client_key == ""


def test_management_addresses_are_those_of_the_hosts_unless_given(broker: Broker) -> None:
    form = BrokerForm(
        model_to_dict(broker)
        | {
            "amqp_addresses": "one, two:5673 [::1]",
            "management_urls": "",
            "password": "typed again",
        },
        instance=broker,
    )
    assert form.is_valid(), form.errors
    row = form.save()
    assert row.amqp_addresses == "one:5672, two:5673, [::1]:5672"
    assert row.management_urls == "http://one:15672, http://two:15672, http://[::1]:15672"
    address = row.address
    assert [one.amqp_name for one in address.amqp_nodes] == ["one:5672", "two:5673", "[::1]:5672"]
    assert [one.management_url for one in address.management_nodes][2] == "http://[::1]:15672"
