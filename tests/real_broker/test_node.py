"""The private node: it starts, keeps what is durable, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from delayboard.demo import node as node_module
from delayboard.demo.node import (
    NodeError,
    PrivateNode,
    configuration,
    environment,
)
from delayboard.demo.place import Place
from delayboard.demo.ports import Holder, Ports, choose_ports, is_free
from delayboard.demo.processes import marked_processes
from tests.brokers import NEWEST, Vhost, call_api, every_generation, root_of
from tests.builders import eventually
from tests.real_broker.restarting import listening
from tests.rooted import make_node

PORTS = Ports(amqp=1, management=2, prometheus=3, distribution=4, epmd=5)


on_own_and_newest = pytest.mark.parametrize("root", [None, root_of(NEWEST)], ids=["own", NEWEST])


@pytest.fixture
def root() -> Path | None:
    """The root file system of the test's own node, unless the test is parametrised with one."""
    return None


@pytest.fixture
def node(tmp_path: Path, root: Path | None) -> Iterator[PrivateNode]:
    """Return a node of the test's own, not started; nothing of it is left afterwards."""
    node = make_node(tmp_path / "node", "own", statistics_interval_ms=1000, root=root)
    yield node
    node.kill()


def listening_addresses() -> list[str]:
    """Return the hexadecimal address:port of every listening TCP socket of this machine."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [fields[1] for fields in lines if fields[3] == "0A"]


def start_elsewhere(folder: Path, root: Path | None) -> int:
    """Start a node in a process that then kills itself; return that process's exit status."""
    program = (
        "import os, sys, pathlib, signal\n"
        "from tests.rooted import make_node\n"
        "folder, *root = map(pathlib.Path, sys.argv[1:])\n"
        "make_node(folder, 'own', root=root[0] if root else None).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = [str(path) for path in (folder, root) if path is not None]
    done = subprocess.run([sys.executable, "-c", program, *arguments])
    return done.returncode


def numbers(version: str) -> list[int]:
    """Return "4.3.6" as [4, 3, 6]."""
    return [int(part) for part in version.split("-")[0].split(".")]


def test_configuration_names_every_port_on_loopback_only() -> None:
    text = configuration(PORTS, "secret", 1000)
    assert "listeners.tcp.1 = 127.0.0.1:1\n" in text
    assert "management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = 2\n" in text
    assert "prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = 3\n" in text
    assert "collect_statistics_interval = 1000\n" in text
    assert "log.file.level = warning\nlog.console.level = warning\n" in text


def test_environment_inherits_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RABBITMQ_USE_LONGNAME", "true")
    variables = environment(Place(tmp_path), "own", PORTS)
    assert "RABBITMQ_USE_LONGNAME" not in variables
    assert variables["RABBITMQ_NODENAME"] == "own@localhost"
    assert variables["ERL_EPMD_PORT"] == "5"


def test_kept_ports_are_used_again_unless_taken(tmp_path: Path) -> None:
    import socket

    first = choose_ports({}, tmp_path, is_free)
    kept = vars(first)
    assert len(set(kept.values())) == len(kept)
    with socket.create_server(("127.0.0.1", first.amqp)):
        second = choose_ports(kept, tmp_path, is_free)
    assert second.amqp != first.amqp
    assert second.management == first.management


def test_a_port_is_held_while_nothing_listens_on_it_yet(tmp_path: Path) -> None:
    holder, other = Holder(), Holder()
    ports = choose_ports({}, tmp_path, holder.take)
    assert not other.take(ports.amqp)
    assert choose_ports(vars(ports), tmp_path, holder.take) == ports
    assert other.take(choose_ports({}, tmp_path, other.take).amqp)
    del holder
    assert other.take(ports.amqp)


def test_our_own_port_is_waited_for_while_a_dying_node_closes_it(tmp_path: Path) -> None:
    holder = Holder()
    ports = choose_ports({}, tmp_path, holder.take)
    with socket.socket() as listening:
        # As RabbitMQ does: a connection of an earlier node may still be in TIME_WAIT.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", ports.amqp))
        listening.listen()
        closing = Timer(0.3, listening.close)
        closing.start()
        assert choose_ports(vars(ports), tmp_path, holder.take) == ports
        closing.join()


@every_generation
def test_answers_and_is_at_least_of_its_generation(
    broker_node: PrivateNode, request: pytest.FixtureRequest
) -> None:
    generation = request.node.callspec.params["broker_node"]
    assert numbers(broker_node.version) >= numbers(generation)
    assert call_api(broker_node, "GET", "overview")["rabbitmq_version"] == broker_node.version


def test_guest_is_no_user(broker_node: PrivateNode) -> None:
    assert [user["name"] for user in call_api(broker_node, "GET", "users")] == ["delayboard"]


def test_wrong_password_is_refused(
    broker_node: PrivateNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrivateNode, "password", "wrong")
    with pytest.raises(urllib.error.HTTPError) as refused:
        call_api(broker_node, "GET", "overview")
    refused.value.close()
    assert refused.value.code == 401


def test_each_test_has_an_empty_vhost(broker_node: PrivateNode, vhost: Vhost) -> None:
    assert call_api(broker_node, "GET", f"queues/{vhost.name}") == []
    assert vhost.amqp_url.endswith(f":{broker_node.amqp_port}/{vhost.name}")


def test_listens_on_loopback_only(broker_node: PrivateNode) -> None:
    found = [
        address
        for address in listening_addresses()
        if address.rpartition(":")[2] in {f"{port:04X}" for port in listening(broker_node)}
    ]
    assert len(found) >= 5
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert {address.rpartition(":")[0] for address in found} == loopback


def test_secrets_are_for_the_owner_only(broker_node: PrivateNode) -> None:
    for name in ("password", "rabbitmq.conf", ".erlang.cookie"):
        assert (broker_node.folder / name).stat().st_mode & 0o077 == 0


@on_own_and_newest
def test_node_of_a_killed_program_ends_by_itself_and_starts_again(
    node: PrivateNode, root: Path | None
) -> None:
    assert start_elsewhere(node.folder, root) == -signal.SIGKILL
    eventually(lambda: not list(marked_processes(node.folder)), "nothing of the orphaned node runs")
    node.start()
    assert call_api(node, "GET", "overview")["node"] == "own@localhost"
    node.kill()
    assert list(marked_processes(node.folder)) == []
    assert listening(node) == []


def test_second_program_is_refused(broker_node: PrivateNode) -> None:
    with pytest.raises(NodeError, match="another process runs the node"):
        PrivateNode(broker_node.folder, "tests").start()
    assert broker_node.is_running


def test_a_root_file_system_without_rabbitmq_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"not installed: .*empty/usr/lib/rabbitmq"):
        make_node(tmp_path / "node", "own", root=tmp_path / "empty").start()


def test_a_start_ends_leftover_processes_and_its_failure_shows_the_end_of_the_log(
    node: PrivateNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.folder.mkdir()
    leftover = subprocess.Popen(
        ["sleep", "600"], env={"DELAYBOARD_NODE": str(node.folder), "PATH": os.environ["PATH"]}
    )
    # For a moment after its start a program's environment cannot be read yet.
    eventually(lambda: list(marked_processes(node.folder)), "the leftover is recognized")
    monkeypatch.setattr(node_module, "configuration", lambda *_: "listeners.tcp.1 = nonsense\n")
    with pytest.raises(NodeError, match="failed_to_prepare_configuration"):
        node.start()
    # By the start: what a failure leaves is killed.
    assert leftover.wait(60) == -signal.SIGTERM
    assert list(marked_processes(node.folder)) == []
