"""The examples of docs/api.md, run by a shell against the served site and a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Event, Thread

import pytest
from django.db import connection
from pytest_django import Settings

from delayboard.dead_letters.replay import run_in_process
from delayboard.models import BatchState, ReplayBatch
from tests.brokers import Vhost
from tests.builders import make_broker, make_user
from tests.real_broker import replaying
from tests.site.api_client import api_of
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db(transaction=True)
DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
AT_WORK = (BatchState.WAITING, BatchState.RUNNING, BatchState.WATCHING)


@contextmanager
def worker() -> Iterator[None]:
    """Carries out what is started."""
    stop = Event()

    def run() -> None:
        while not stop.wait(0.1):
            batch = ReplayBatch.objects.filter(state__in=AT_WORK).first()
            if batch is not None:
                run_in_process.carry_out(batch, stop, lambda _: None)
        connection.close()

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def test_a_group_is_replayed_by_curl_as_the_document_says(
    vhost: Vhost, site_url: str, settings: Settings, tmp_path: Path
) -> None:
    settings.EVENT_LOG = tmp_path / "log"
    broker = make_broker(vhost)
    ann = make_user("ann", Role.OPERATOR)
    replaying.shop(vhost)
    replaying.rejected(vhost, "a", "b", "c")
    parked = replaying.park(ann, broker, 3)
    examples = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(examples) == 4
    token = api_of(ann, Role.OPERATOR).secret
    variables = {"BOARD": site_url, "TOKEN": token, "BROKER": broker.slug}
    with worker():
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(examples)],
            env={"PATH": "/usr/bin:/bin", "GROUP": str(parked[0].group_id), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    batch = ReplayBatch.objects.get()
    assert (batch.state, batch.done, batch.canary) == (BatchState.DONE, 3, 1)
    assert '"kind": "dry-run"' in done.stdout
    assert {one.message_id for one in parked} == {
        message.properties.message_id for message in replaying.arrived(vhost, number=3)
    }
    started = AuditEntry.objects.get(action="replay started")
    assert (started.username, started.details["token"]) == ("ann", "test")


@pytest.mark.long
def test_a_generated_client_reads_and_is_refused(
    site_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By openapi-python-client, of the document as the site serves it."""
    broker = make_broker(name="Orders")
    api = api_of(make_user("ann", Role.VIEWER), Role.VIEWER)
    (tmp_path / "openapi.json").write_bytes(api.get("openapi.json").content)
    command = [str(Path(sys.executable).parent / "openapi-python-client"), "generate"]
    command += ["--path", str(tmp_path / "openapi.json"), "--meta", "none"]
    command += ["--output-path", str(tmp_path / "board_client")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # It has no formatter here, and nothing else to say.
    assert {line for line in done.stdout.splitlines() if "WARNING" in line} == set()
    monkeypatch.syspath_prepend(str(tmp_path))
    package = import_module("board_client")
    modules = {
        name: import_module(f"board_client.api.brokers.{name}")
        for name in ("list_brokers", "get_broker", "adopt_topology")
    }
    with package.AuthenticatedClient(base_url=site_url, token=api.secret) as client:
        listed = modules["list_brokers"].sync(client=client)
        one = modules["get_broker"].sync(broker.slug, client=client)
        body = package.models.Adoption(kind="retry_pair", name="x")
        adopt = modules["adopt_topology"].sync_detailed
        refused = adopt(broker.slug, client=client, body=body)
    assert [one.slug for one in listed.items] == [broker.slug]
    assert (one.name, one.version) == ("Orders", None)
    assert refused.status_code == 403
    assert "role operator" in refused.parsed.detail
