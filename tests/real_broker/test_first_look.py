"""The first page about an own broker: complete within a minute, and nothing there is changed."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.urls import reverse

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api
from tests.builders import eventually
from tests.site.page_setup import signed_in, text_of
from tests.topology.findings.examples.example import Example
from tests.topology.findings.test_classic_mistakes import MISTAKES, healthy
from topology.definitions import Definitions
from topology.models import Role

pytestmark = pytest.mark.django_db

PASSWORD = "a password for tests"
NOTHING = {"configure": "^$", "write": "^$", "read": "^$"}


@pytest.fixture
def account(broker_node: PrivateNode, vhost: Vhost) -> Any:
    """Makes the account of the vhost's name with these tags and permissions."""

    def make(tags: str, permissions: dict[str, str] | None = None) -> None:
        call_api(broker_node, "PUT", f"users/{vhost.name}", {"password": PASSWORD, "tags": tags})
        if permissions:
            call_api(broker_node, "PUT", f"permissions/{vhost.name}/{vhost.name}", permissions)

    yield make
    call_api(broker_node, "DELETE", f"users/{vhost.name}")


def add(client: Client, vhost: Vhost) -> str:
    """The page that adding the broker leads to."""
    amqp = urlsplit(vhost.amqp_url)
    fields = {
        "name": "Own rabbit",
        "environment": "own",
        "colour": "green",
        "amqp_addresses": f"{amqp.hostname}:{amqp.port}",
        "vhost": vhost.name,
        "management_urls": vhost.management_url,
        "username": vhost.name,
        "password": PASSWORD,
    }
    return text_of(client.post(reverse("topology:broker_add"), fields, follow=True))


def test_the_four_mistakes_among_200_queues_are_shown_to_an_account_that_may_only_look(
    broker_node: PrivateNode, vhost: Vhost, account: Any
) -> None:
    objects = Definitions.of([*healthy(200), *MISTAKES])
    path = f"definitions/{vhost.name}"
    call_api(broker_node, "POST", path, Example.of(objects).definitions())
    account("management", NOTHING)
    before = call_api(broker_node, "GET", path)
    client, began = signed_in(Role.ADMIN), time.monotonic()
    text = add(client, vhost)
    page = reverse("topology:broker", args=["own-rabbit"])

    def is_complete() -> bool:
        nonlocal text
        text = text if "Most severe findings" in text else text_of(client.get(page))
        return "Most severe findings" in text

    eventually(is_complete, "the page is complete")
    assert time.monotonic() - began < 60
    assert "<strong>102</strong><span>recognized topologies" in text
    assert "<strong>0</strong><span>dead letters without a consumer" in text
    titles = [
        "Dead-letter exchange missing",
        "Dead letters without a route",
        "TTL without a dead-letter exchange",
        "One message waits in several queues",
    ]
    shown = [text.index(title) for title in titles[:3]]
    assert shown == sorted(shown)
    assert "No queue gets a message that dies in “unbound-key”" in text
    assert f"rabbitmqctl set_user_tags {vhost.name} monitoring" in text
    found = text_of(client.get(reverse("topology:findings", args=["own-rabbit"])))
    listed = [found.index(title) for title in titles]
    assert listed == sorted(listed)
    assert call_api(broker_node, "GET", path) == before


@pytest.mark.parametrize(
    ("tags", "permissions", "sentence"),
    [
        ("", NOTHING, "may not use the management API. Add the tag “management”"),
        ("management", None, "virtual host"),
    ],
)
def test_an_account_that_may_see_nothing_is_told_what_to_grant(
    vhost: Vhost, account: Any, tags: str, permissions: dict[str, str] | None, sentence: str
) -> None:
    account(tags, permissions)
    text = add(signed_in(Role.ADMIN), vhost)
    assert sentence in text
    assert "recognized topologies" not in text
