"""A machine is lost in the middle of a replay: what a backup brings back, on another one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings as current
from django.core.management import call_command
from django.db import connection
from pytest_django import Settings

from delayboard.models import ReplayBatch
from tests.analytics.builders import NOON, a_trip, write_log
from tests.brokers import Vhost, newest_generation
from tests.builders import eventually
from tests.faults.forking import forked
from tests.faults.processes import ROOT, database_url, started
from tests.faults.replays import a_replay, arrived, declare, depth, depth_at_rest, has_done
from topology.management.exit_codes import ExitCode

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]
MESSAGES, RATE = 600, 150.0
STATE = """
import json
from analytics.models import ScheduledMessage
from delayboard.models import BackgroundTask, ReplayBatch
batch = ReplayBatch.objects.get()
items = batch.items
print(json.dumps({
    "state": batch.state, "why": batch.state_why, "done": batch.done, "doubled": batch.doubled,
    "marked": list(items.filter(may_be_duplicated=True).values_list("message_id", flat=True)),
    "beats": BackgroundTask.objects.filter(key="replay", beat_at__isnull=False).count(),
    "scheduled": ScheduledMessage.objects.count(),
    "password": batch.broker.address.password,
}))
"""
RESUME = """
from delayboard.dead_letters.replay import batch_state
from delayboard.models import ReplayBatch
batch_state.resume(None, ReplayBatch.objects.get())
"""


class Machine:
    """Another one, with a database and a folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        unset = {"SECRET_KEY", "CREDENTIAL_KEYS", "EVENT_LOG", "LOG_URL"}
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        self.variables = {**kept, "DATABASE_URL": url, "DELAYBOARD_VAR": str(folder)}
        self.folder = folder

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            env=self.variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def read(self, code: str = STATE) -> dict[str, Any]:
        done = self.run("shell", "--no-imports", "-c", code)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if connection.vendor == "sqlite":
        yield Machine(tmp_path / "new", "")
        return
    url, name = database_url(), f"restored_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(f"CREATE DATABASE {name}")
    yield Machine(tmp_path / "new", url.rpartition("/")[0] + f"/{name}")
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(f"DROP DATABASE {name} WITH (FORCE)")


@newest_generation
def test_a_replay_of_a_lost_machine_waits_and_then_loses_nothing_and_marks_what_is_double(
    vhost: Vhost, settings: Settings, tmp_path: Path, machine: Machine
) -> None:
    settings.EVENT_LOG = lost = tmp_path / "lost"
    write_log(lost, a_trip("m1", NOON), "tap.orders.1")
    keys = tmp_path / "var"
    keys.mkdir()
    (keys / "signing_key").write_text(current.SECRET_KEY)
    (keys / "credential_keys").write_text(" ".join(current.CREDENTIAL_KEYS))
    declare(vhost, "classic")
    batch = a_replay(vhost, MESSAGES, rate=RATE)
    backup = tmp_path / "backup"
    with forked("worker") as worker:
        eventually(partial(has_done, batch, MESSAGES // 4), "a quarter is sent")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(current, "VAR", keys)
            call_command("backup", str(backup))
        eventually(partial(has_done, batch, MESSAGES // 2), "half is sent")
        worker.send_signal(signal.SIGKILL)
    shutil.rmtree(lost)
    at_loss = depth_at_rest(vhost)
    assert MESSAGES // 2 <= at_loss < MESSAGES

    done = machine.run("restore", str(backup))
    assert done.returncode == 0, done.stderr
    assert "Paused replays: 1" in done.stdout
    assert done.stderr == ""
    again = machine.run("restore", str(backup))
    assert again.returncode == ExitCode.NOT_RUN
    assert "with --replace" in again.stderr
    with started("worker", variables=machine.variables):
        eventually(lambda: machine.read()["beats"], "the replayer of the new machine works")
        state = machine.read()
        assert state["state"] == "paused"
        assert state["why"].startswith("Restored from a backup of ")
        assert state["password"] == batch.broker.address.password
        assert depth(vhost) == at_loss
        # The log came too, and names itself as before.
        assert list((machine.folder / "log").rglob("tap.orders.1-1.jsonl"))
        assert MESSAGES // 4 <= state["done"] < at_loss
        assert len(state["marked"]) == state["doubled"] == MESSAGES - state["done"]
        machine.read(RESUME)
        eventually(lambda: machine.read()["state"] == "done", "the rest is sent")
    copies = arrived(vhost)
    assert set(copies) == {f"m{number}" for number in range(MESSAGES)}
    assert {name for name, times in copies.items() if times > 1} <= set(machine.read()["marked"])
    assert machine.run("restore", str(backup), "--replace").returncode == 0
    assert machine.read()["state"] == "paused"
    # This machine's own rows are as they were.
    assert ReplayBatch.objects.count() == 1
