"""A RabbitMQ node for the session and a vhost of its own for each test."""

from __future__ import annotations

import base64
import json
import secrets
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from delayboard.demo.node import PrivateNode


@dataclass(frozen=True)
class Vhost:
    """An empty vhost on a running node: its addresses, its name, whom to be."""

    amqp_url: str
    management_url: str
    name: str
    username: str
    password: str


def call_api(node: PrivateNode, method: str, path: str, body: object = None) -> Any:
    """Call the management API at `path` (after `/api/`); return the answer's JSON, or None.

    Raises urllib.error.HTTPError for an answer from 400 on.
    """
    token = base64.b64encode(f"{node.username}:{node.password}".encode()).decode()
    request = urllib.request.Request(
        f"{node.management_url}/api/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as response:
        answer = response.read()
    return json.loads(answer) if answer else None


@pytest.fixture(scope="session")
def broker_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateNode]:
    """Run a node for the session; statistics every second. A node that fails, fails the tests."""
    node = PrivateNode(tmp_path_factory.mktemp("node"), "tests", statistics_interval_ms=1000)
    node.start()
    yield node
    node.kill()


@pytest.fixture
def vhost(broker_node: PrivateNode) -> Iterator[Vhost]:
    """Make a vhost with a random name and full permissions; delete it afterwards."""
    name = f"t-{secrets.token_hex(6)}"
    call_api(broker_node, "PUT", f"vhosts/{name}", {})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    call_api(broker_node, "PUT", f"permissions/{name}/{quote(broker_node.username)}", everything)
    yield Vhost(
        amqp_url=f"{broker_node.amqp_url.rpartition('/')[0]}/{name}",
        management_url=broker_node.management_url,
        name=name,
        username=broker_node.username,
        password=broker_node.password,
    )
    call_api(broker_node, "DELETE", f"vhosts/{name}")
