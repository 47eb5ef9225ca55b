"""`make run`: up, put right when something is killed, and gone when it is told to stop."""

from __future__ import annotations

import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from delayboard.demo.ports import is_free
from delayboard.demo.run import BrokerUrls, CannotRun, children, own_broker, pause
from tests.builders import eventually
from tests.faults.processes import started
from topology.broker.address import AddressError

WORKER = "manage.py\0worker"


def free_port() -> int:
    return next(port for port in range(18000, 19000) if is_free(port))


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def living(folder: Path, word: str) -> list[int]:
    """The processes of this installation whose command line holds the word."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            variables = (entry / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in command and str(folder).encode() in variables:
            found.append(int(entry.name))
    return found


def test_it_starts_everything_once_restarts_a_killed_worker_and_stops_all(tmp_path: Path) -> None:
    port = free_port()
    site = f"http://127.0.0.1:{port}/login/"
    variables = {**os.environ, "DELAYBOARD_VAR": str(tmp_path)}
    variables.pop("DATABASE_URL", None)
    with started("run", "--port", str(port), variables=variables) as run:
        eventually(lambda: answers(site), "the site answers", seconds=300)
        (worker,) = eventually(lambda: living(tmp_path, WORKER), "the worker runs")
        os.kill(worker, signal.SIGKILL)
        eventually(
            lambda: [pid for pid in living(tmp_path, WORKER) if pid != worker],
            "the worker is started again",
        )
        second = started("run", "--port", str(port), variables=variables)
        with second as again:
            said, _ = again.communicate(timeout=120)
            assert b"already runs in this folder" in said
            assert again.returncode != 0
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=120)
    passwords = re.findall(rb"password\s+(\S+)", said)
    assert len(passwords) == 1
    eventually(lambda: not living(tmp_path, ""), "nothing of it is left")
    with started("run", "--port", str(port), variables=variables) as run:
        eventually(lambda: answers(site), "it comes up again", seconds=300)
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=120)
    assert b"password" not in said


def test_the_children_are_site_worker_and_with_a_broker_of_ours_traffic() -> None:
    names = [child.name for child in children(["python", "manage.py"], 1, with_traffic=True)]
    assert names == ["site", "worker", "traffic"]
    own = [child.name for child in children(["python", "manage.py"], 1, with_traffic=False)]
    assert own == ["site", "worker"]


def test_a_child_that_keeps_ending_is_started_less_and_less_often() -> None:
    assert [pause(ends) for ends in (1, 2, 3, 10)] == [1.0, 2.0, 4.0, 30.0]


def test_the_management_address_of_an_own_broker_is_that_of_its_host_unless_given() -> None:
    assert own_broker("", "") is None
    for amqp, given, management in (
        ("amqp://h", "http://other:80", "http://other:80"),
        ("amqp://user:secret@h:5673/shop", "", "http://h:15672"),
        ("amqps://h", "", "https://h:15671"),
        ("amqp://[::1]", "", "http://[::1]:15672"),
    ):
        assert own_broker(amqp, given) == BrokerUrls(amqp, management)


def test_what_is_no_address_of_a_broker_is_refused_in_a_sentence() -> None:
    with pytest.raises(CannotRun, match="Add the broker's address"):
        own_broker("", "http://h")
    with pytest.raises(AddressError, match="must look like amqp://"):
        own_broker("h:5672", "")
