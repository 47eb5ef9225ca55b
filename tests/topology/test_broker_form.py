"""A stored password goes only where it went before, and a host is one that can be."""

from __future__ import annotations

from typing import Any

import pytest
from django.forms import ValidationError, model_to_dict

from tests.builders import make_broker
from topology.forms.broker import BrokerForm, check_host
from topology.models import Broker

AGAIN = "The address changed. Type the password again"


@pytest.fixture
def broker(db: None) -> Broker:
    broker = make_broker()
    broker.ca_certificate = "-----BEGIN\nabc\n-----END"
    broker.save()
    return broker


def problems(broker: Broker | None = None, **typed: Any) -> dict[str, list[str]]:
    values = model_to_dict(broker) if broker else {}
    form = BrokerForm(values | {"password": ""} | typed, instance=broker)
    return {name: list(map(str, found)) for name, found in form.errors.items()}


@pytest.mark.parametrize(
    "typed",
    [
        {"host": "elsewhere"},
        {"port": 5673},
        {"management_url": "http://elsewhere:15672"},
        {"tls": True},
        {"verify_tls": False},
        {"ca_certificate": ""},
    ],
)
def test_another_address_asks_for_the_password_again(broker: Broker, typed: dict[str, Any]) -> None:
    assert problems(broker, **typed)["password"][0].startswith(AGAIN)
    assert problems(Broker.objects.get(), **typed, password="typed again") == {}


@pytest.mark.parametrize(
    "typed",
    [
        {"name": "Renamed", "colour": "red"},
        {"management_url": "http://127.0.0.1:9/"},
        {"ca_certificate": "-----BEGIN\r\nabc\r\n-----END\r\n"},
    ],
)
def test_the_same_address_keeps_the_stored_password(broker: Broker, typed: dict[str, Any]) -> None:
    assert problems(broker, **typed) == {}


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
        ("host", "a..b"),
        ("management_url", "http://a..b:15672"),
        ("management_url", f"http://{'l' * 64}:15672"),
        ("management_url", "http://a\nb:15672"),
        ("management_url", "http://a b:15672"),
    ],
)
def test_the_form_refuses_such_hosts_in_both_addresses(
    broker: Broker, name: str, text: str
) -> None:
    assert set(problems(broker, **{name: text}, password="typed again")) == {name}


def test_both_addresses_may_be_ipv6_literals(broker: Broker) -> None:
    typed = {"host": "::1", "management_url": "http://[::1]:15672"}
    assert problems(broker, **typed, password="typed again") == {}
