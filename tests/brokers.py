"""RabbitMQ nodes of three generations and a vhost of its own for each test.

A test that is marked `every_generation` runs on each of them, any other in tests/real_broker on
the newest, and in `make test-all` on each too; elsewhere one that is not marked runs on the newest.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from _pytest.mark import ParameterSet

from delayboard.demo.node import PrivateNode
from tests.rooted import make_node

# Generation -> the Debian suite whose package it is; tests/rootfs.sh has the same suites. One
# that is not released yet, as forky was, may have moved on.
SUITES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "forky"}
NEWEST = "4.3"
every_generation = pytest.mark.generations(*SUITES)
newest_generation = pytest.mark.generations(NEWEST)


def generations(*wanted: str) -> list[ParameterSet]:
    """Return parameters of all generations; those that are not wanted are marked `long`."""
    return [
        pytest.param(name, marks=[] if name in wanted else [pytest.mark.long]) for name in SUITES
    ]


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


def root_of(generation: str) -> Path | None:
    """Return the root file system that tests/rootfs.sh made for it; None on its own suite."""
    suite = SUITES[generation]
    own = platform.freedesktop_os_release()
    if own.get("ID") == "debian" and own.get("VERSION_CODENAME") == suite:
        return None
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("DELAYBOARD_CACHE") or user / "delayboard")
    return cache / f"rootfs-{suite}"


@pytest.fixture(scope="session")
def newest_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateNode]:
    """Run the newest RabbitMQ until the session ends; statistics every second."""
    yield from _running(tmp_path_factory, NEWEST)


@pytest.fixture(scope="session")
def broker_node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrivateNode]:
    """The node of the generation that the test is parametrised with, else the newest.

    pytest sorts the tests by generation, so that beside the newest only one runs at a time. A node
    that fails, fails the tests.
    """
    generation = getattr(request, "param", NEWEST)
    if generation == NEWEST:
        yield request.getfixturevalue("newest_node")
    else:
        yield from _running(tmp_path_factory, generation)


def _running(folders: pytest.TempPathFactory, generation: str) -> Iterator[PrivateNode]:
    folder, root = folders.mktemp("node"), root_of(generation)
    node = make_node(folder, "tests", statistics_interval_ms=1000, root=root)
    node.start()
    yield node
    node.kill()


@pytest.fixture
def vhost(broker_node: PrivateNode) -> Iterator[Vhost]:
    """Make a vhost with a random name and full permissions; delete it afterwards."""
    with vhost_on(broker_node) as made:
        yield made


@contextmanager
def vhost_on(node: PrivateNode) -> Iterator[Vhost]:
    """The same on any node, for the length of a block."""
    name = f"t-{secrets.token_hex(6)}"
    call_api(node, "PUT", f"vhosts/{name}", {})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    call_api(node, "PUT", f"permissions/{name}/{quote(node.username)}", everything)
    yield Vhost(
        amqp_url=f"{node.amqp_url.rpartition('/')[0]}/{name}",
        management_url=node.management_url,
        name=name,
        username=node.username,
        password=node.password,
    )
    call_api(node, "DELETE", f"vhosts/{name}")
