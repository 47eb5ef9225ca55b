"""Commands print the same through the API of a served site as they do on its host."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.request import Request, urlopen

import pytest
from django.db import connection
from pytest_django import Settings

from analytics.models import ScheduledMessage
from delayboard.management import run_in_process
from delayboard.models import BatchState, ReplayBatch, ScheduledChange
from delayboard.models.parked_search import ParkedPosition, ParkedText
from delayboard.publishing import publish_job
from tests.brokers import Vhost
from tests.builders import (
    address_of,
    applied_topology,
    eventually,
    make_broker,
    make_pair,
    make_user,
    running,
)
from tests.commands import Ended, run
from tests.real_broker import changing, replaying
from tests.site.api_client import api_of
from tests.topology.builders import a_queue
from topology import snapshots, work
from topology.broker.management.client import Management
from topology.definitions import Binding
from topology.models import AuditEntry, Broker, Role, State, Topology, Work
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels.params import KIND, Params, delivery_name
from topology.snapshot import QueueNumbers

pytestmark = pytest.mark.django_db(transaction=True)
Run = Callable[..., Ended]
KEY = r"[0-9a-f-]{36}"
TIME = r"\d\d:\d\d:\d\d"
NUMBER = r"(?<=Replay )\d+|(?<=--resume )\d+|(?<=--cancel )\d+|(?<=\"replay\":)\d+"
LOG = r"\d{4}-\d\d-\d\d [^\n]* WARNING [^\n]*\n"


def strip(ended: Ended) -> Ended:
    """Without what differs each time, and the log of the site in this process."""
    code, *texts = ended
    return Ended(code, *(re.sub(f"{KEY}|{LOG}", "", text) for text in texts))


@pytest.fixture
def broker(vhost: Vhost, settings: Settings, tmp_path: Path) -> Broker:
    settings.EVENT_LOG = tmp_path / "log"
    return make_broker(vhost)


@pytest.fixture
def elsewhere(broker: Broker, site_url: str, tmp_path: Path) -> Run:
    """A command with the token of an administrator."""
    file = tmp_path / "token"
    file.write_text(api_of(make_user("ann", Role.ADMIN), Role.ADMIN).secret + "\n")
    return lambda *words: run(*words, "--server", site_url, "--token-file", str(file))


def test_topologies_routes_and_findings(broker: Broker, elsewhere: Run, tmp_path: Path) -> None:
    pair = make_pair(broker)
    baseline = tmp_path / "baseline.json"
    steps: list[tuple[int, tuple[str, ...]]] = [
        (1, ("plan", pair.slug)),
        (0, ("apply", pair.slug, "--dry-run", "--json")),
        (0, ("apply", pair.slug)),
        (0, ("verify", pair.slug)),
        (0, ("plan", pair.slug, "--json")),
        (0, ("edit", pair.slug, "delay=20s", "--dry-run")),
        (0, ("walk", broker.slug, "", "orders", "--json")),
        (1, ("walk", broker.slug, "", "orders", "--rejecting", "orders")),
        (1, ("walk", broker.slug, "gone", "x")),
        (0, ("export_topology", pair.slug)),
        (0, ("export_topology", pair.slug, "--format", "terraform")),
        (0, ("lint", broker.slug)),
        (1, ("lint", broker.slug, "--fail-on", "style", "--format", "sarif")),
        (0, ("lint", broker.slug, "--write-baseline", str(baseline))),
        (0, ("lint", broker.slug, "--fail-on", "style", "--baseline", str(baseline))),
        (4, ("report", "--date", "2026-01-01")),
        (4, ("report", "--date", "2026-01-01", "--json")),
        (0, ("teardown", pair.slug, "--dry-run")),
    ]
    for code, words in steps:
        there, here = elsewhere(*words), run(*words)
        # The second one creates nothing; times and the log of the site differ.
        if words[0] != "apply" or "--dry-run" in words:
            assert re.sub(TIME, "", there.out) == re.sub(TIME, "", here.out), words
            assert there.code == here.code, words
        assert there.code == code, (words, there)
    api = api_of(make_user("eve", Role.OPERATOR), Role.OPERATOR)
    body = {"kind": pair.kind, "name": "orders"}
    adopt = f"brokers/{broker.slug}/adopt?dry_run=true"
    assert "already manages" in api.post(adopt, body).json()["detail"]
    Topology.objects.update(state=State.DELETED)
    found = api.post(adopt, body).json()
    Topology.objects.update(state=State.APPLIED)
    assert (found["topology"], {one["sign"] for one in found["changes"]}) == (None, {"present"})
    entries = AuditEntry.objects.filter(action="topology verified").values_list(
        "username", flat=True
    )
    assert set(entries) == {"ann", "delayboard"}
    (made,) = json.loads(elsewhere("annotate", "shop 2.4.0", "--topology", pair.slug, "--json").out)
    assert (made["author"], made["topology"]) == ("ann", pair.slug)
    assert json.loads(elsewhere("annotate", "--json").out)[-1] == made
    words = ("annotate", "--topology", pair.slug)
    assert elsewhere(*words) == run(*words)
    assert elsewhere(*words, "--json").out == run(*words, "--json").out
    deleted = elsewhere("annotate", "--delete", str(made["id"]))
    assert (deleted.code, deleted.out) == (0, f"Deleted annotation {made['id']}.\n")
    assert elsewhere("lint", broker.slug, "--rabbitmq-version", "4.3").code == 2
    definitions = tmp_path / "definitions.json"
    definitions.write_text(run("export_topology", pair.slug).out)
    imported = elsewhere("import_topologies", broker.slug, str(definitions))
    assert imported == run("import_topologies", broker.slug, str(definitions))
    assert elsewhere("teardown", pair.slug).code == 0
    refused = elsewhere("apply", pair.slug)
    assert (refused.code, "is deleted" in refused.err) == (2, True)
    assert run("apply", pair.slug).code == 2
    assert elsewhere("plan", "none").code == 2


def test_parked_messages(
    broker: Broker, vhost: Vhost, elsewhere: Run, tmp_path: Path, settings: Settings
) -> None:
    replaying.shop(vhost)
    replaying.rejected(vhost, "a", "b", "c")
    replaying.park(make_user("bob", Role.OPERATOR), broker, 3)
    file = tmp_path / "parked.jsonl"
    for words in (
        ("export_dead_letters", broker.slug),
        ("export_dead_letters", broker.slug, "--format", "csv"),
        ("export_dead_letters", broker.slug, "--q", "queue:none"),
    ):
        assert elsewhere(*words) == run(*words), words
    file.write_text(run("export_dead_letters", broker.slug).out + "{\n")
    there = elsewhere("import_dead_letters", broker.slug, str(file))
    assert there == run("import_dead_letters", broker.slug, str(file))
    assert there.code == 3
    ParkedText.objects.all().delete()
    ParkedPosition.objects.all().delete()
    words = ("export_dead_letters", broker.slug, "--q", "header.a:1")
    assert "3 messages are not indexed yet" in elsewhere(*words).err
    assert elsewhere(*words) == run(*words)
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = file.stat().st_size - 1
    large = elsewhere("import_dead_letters", broker.slug, str(file))
    assert (large.code, "which --server cannot send" in large.err) == (2, True)


def test_a_message_is_published(broker: Broker, vhost: Vhost, elsewhere: Run) -> None:
    replaying.shop(vhost)
    Broker.objects.update(is_production=True, environment="live")
    words = ("publish", "--broker", broker.slug, "--routing-key", "orders", "--headers", '{"a": 1}')
    sure = ("--confirm", "another", "--confirm", broker.name)
    for code, given in (
        (0, (*words, *sure)),
        (3, (*words, *sure, "--json", "--wait", "1s")),
        (0, (*words, "--dry-run")),
        (1, (*words, "--confirm", "another")),
        (2, (*words, *sure, "--expiration", "soon")),
        (2, (*words[:-1], "[]")),
        (1, ("publish", "--broker", broker.slug, "--routing-key", "nowhere", *sure)),
        (2, ("publish", "--broker", "gone", "--routing-key", "orders", *sure)),
        (2, (*words, *sure, "--count", "2")),
    ):
        there, here = elsewhere(*given), run(*given)
        assert strip(there) == strip(here), given
        assert there.code == code, (given, there)
    assert "on the host" in elsewhere("publish", "--file", "x").err
    assert replaying.depth(broker, "orders") == 4


def test_a_change_is_made_once_though_its_answer_is_lost(
    broker: Broker, vhost: Vhost, elsewhere: Run, losing: str
) -> None:
    replaying.shop(vhost)
    words = ("publish", "--broker", broker.slug, "--routing-key", "orders")
    there = elsewhere(*words, "--server", losing)
    assert (there.code, "The broker confirmed" in there.out) == (0, True), there
    assert replaying.depth(broker, "orders") == 1


@pytest.fixture
def losing(site_url: str) -> Iterator[str]:
    """The address of the site behind a proxy that loses the first answer to each change."""
    seen = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with urlopen(Request(site_url + self.path, body, dict(self.headers))) as answer:
                content = answer.read()
            key = self.headers["Idempotency-Key"]
            if key in seen:
                self.send_response(answer.status)
                self.end_headers()
                self.wfile.write(content)
            seen.add(key)

        def do_GET(self) -> None:
            with urlopen(Request(site_url + self.path, headers=dict(self.headers))) as answer:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer.read())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_publish_job_is_followed(broker: Broker, vhost: Vhost, elsewhere: Run) -> None:
    replaying.shop(vhost)
    message = ("publish", "--broker", broker.slug, "--routing-key", "orders")
    words = (*message, "--count", "2", "--rate", "10")
    with as_worker("publish", publish_job.attend):
        there = elsewhere(*words, "--json")
    here = run(*words, "--json")
    lines = [re.sub(KEY, "", one.out).splitlines() for one in (there, here)]
    for known, found in zip(*([*some[:2], some[-1]] for some in lines), strict=True):
        assert known == found
    assert there.code == here.code == 0
    assert replaying.depth(broker, "orders") == 4


def test_waiting_messages_are_listed_and_changed(
    broker: Broker, vhost: Vhost, elsewhere: Run
) -> None:
    params = Params("own", "shop", 12)
    topology = applied_topology(create_topology(None, broker, KIND, params))
    with Management(address_of(vhost)) as management:
        management.declare_queue(a_queue("orders"))
        management.bind(Binding(delivery_name(params), "orders", "#.orders"))
    changing.delay(
        topology, vhost, ((one, "orders", timedelta(minutes=30)) for one in ("m1", "m2", "m3"))
    )
    ScheduledMessage.objects.filter(key="m2").update(correlation_id="c2")
    for code, given in (
        (0, ("--topology", topology.slug)),
        (0, ("--json", "--id", "c2", "--id", "m1")),
        (0, ("--json", "--text", "id:m3")),
        (2, ("--topology", "gone")),
        (2, ("--from", "soon")),
        (2, ("cancel", "--id", "m9", "--dry-run")),
        (2, ("cancel",)),
        (0, ("cancel", "--id", "m1", "--dry-run")),
        (0, ("reschedule", "--all", "--to", "+1h", "--dry-run")),
        (2, ("deliver-now", "--id", "m1", "--text", "id:m2")),
    ):
        there, here = elsewhere("scheduled", *given), run("scheduled", *given)
        assert re.sub(TIME, "", strip(there).out) == re.sub(TIME, "", strip(here).out), given
        assert strip(there).err.count("\n") == strip(here).err.count("\n"), given
        assert there.code == here.code == code, (given, there, here)
    Broker.objects.update(is_production=True, environment="live")
    asked = elsewhere("scheduled", "cancel", "--id", "m1", "--id", "m2")
    assert asked == run("scheduled", "cancel", "--id", "m1", "--id", "m2")
    assert not ScheduledChange.objects.exists()
    sure = ("--confirm", broker.name)
    made = elsewhere("scheduled", "cancel", "--id", "m1", "--id", "m2", *sure)
    assert (made.code, made.out[-26:]) == (0, "2 of 2 changes requested.\n"), made
    first, second = ScheduledChange.objects.order_by("pk")
    assert AuditEntry.objects.filter(action="cancel requested", username="ann").count() == 2
    lists: list[tuple[str, ...]] = [(), ("--json",), ("--id", "m2"), ("--limit", "1")]
    dry_runs: list[tuple[str, ...]] = [("--all",), ("--id", f"{first.pk}"), ("--id", "0")]
    for words in (
        *(("scheduled", "changes", "--topology", topology.slug, *more) for more in lists),
        *(("scheduled", "undo", "--dry-run", *more) for more in dry_runs),
    ):
        assert strip(elsewhere(*words)) == strip(run(*words)), words
    assert elsewhere("scheduled", "undo", "--all").code == 1
    undone = elsewhere("scheduled", "undo", "--id", f"{first.pk}", *sure)
    assert undone.out == f"{first.pk}  cancel m1 for orders: undone.\n1 of 1 changes undone.\n"
    late = elsewhere("scheduled", "undo", "--id", f"{first.pk}", *sure)
    assert strip(late) == strip(run("scheduled", "undo", "--id", f"{first.pk}", *sure))
    assert (late.code, ScheduledChange.objects.get(pk=second.pk).can_be_undone) == (1, True)


def known_messages(broker: Broker, queue: str) -> int | None:
    snapshot = snapshots.poll(broker, 20).snapshot
    return snapshot.numbers.get(queue, QueueNumbers()).messages if snapshot else None


def test_dead_letters_are_replayed(broker: Broker, vhost: Vhost, elsewhere: Run) -> None:
    replaying.shop(vhost)
    replaying.rejected(vhost, "a", "b", "c")
    replaying.park(make_user("bob", Role.OPERATOR), broker, 3)
    # Whether deaths are observed depends on a number that RabbitMQ reports after some seconds.
    eventually(lambda: known_messages(broker, replaying.DEAD) == 0, "the queue is reported empty")
    Broker.objects.update(is_production=True, environment="live")
    words, some = ("replay_dead_letters", broker.slug), ("--query", "queue:dead")
    for code, given in (
        (0, (*some, "--dry-run")),
        (0, (*some, "--dry-run", "--json")),
        (1, some),
        (2, (*some, "--rate", "fast", "--canary", "x")),
        (2, (*some, "--to-exchange", "orders")),
        (2, (*some, "--delay", "soon", "--through", "gone")),
        (1, ("--query", "size:x")),
        (0, (*some, "--dry-run", "--to-exchange", "", "--key", "orders", "--canary", "2")),
        (1, (*some, "--to-exchange", "", "--key", "nowhere")),
        (2, ()),
    ):
        there, here = elsewhere(*words, *given), run(*words, *given)
        texts = [re.sub(NUMBER, "", "\n".join(strip(one)[1:])) for one in (there, here)]
        assert texts[0] == texts[1] or "gone" in given, given
        assert there.code == here.code == code, (given, there, here)
    assert elsewhere(*words, "--group", "99").code == run(*words, "--group", "99").code == 2
    sure = ("--confirm", broker.name)
    with running(replay_what_is_started):
        there = elsewhere(*words, *some, *sure, "--canary", "1", "--json")
        replay = json.loads(there.out.splitlines()[-1])
        assert (there.code, replay["state"], replay["done"]) == (3, "paused", 1)
        number = str(replay["replay"])
        resumed = elsewhere(*words, "--resume", number)
        assert (resumed.code, "3 selected = 3 done" in resumed.out) == (0, True), resumed
    assert ReplayBatch.objects.get(pk=number).requested_by is None
    assert AuditEntry.objects.filter(action="replay started", username="ann").exists()
    ended = [where(*words, "--cancel", number) for where in (elsewhere, run)]
    assert strip(ended[0]) == strip(ended[1])


def replay_what_is_started(stop: Event) -> None:
    """As the worker of the site."""
    states = (BatchState.WAITING, BatchState.RUNNING, BatchState.WATCHING)
    while not stop.wait(0.1):
        if batch := ReplayBatch.objects.filter(state__in=states).first():
            run_in_process.carry_out(batch, stop, lambda _: None)
    connection.close()


@contextmanager
def as_worker(kind: str, attend: Callable[..., None]) -> Iterator[None]:
    """Do the next work of this kind in a thread, as a worker would."""

    def act() -> None:
        try:
            while not (rows := Work.objects.filter(kind=kind)):
                is_over.wait(0.1)
            claimed = work.claim_this(rows[0], "test")
            assert claimed is not None
            work.attempt(attend, claimed, stop=Event())
        finally:
            connection.close()

    is_over = Event()
    thread = Thread(target=act)
    thread.start()
    yield
    thread.join()


def test_a_token_is_not_sent_in_clear(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("dlb_x")
    words = ("plan", "x", "--server", "http://board.example.com", "--token-file", str(file))
    ended = run(*words)
    assert (ended.code, "Use https" in ended.err) == (2, True)
    assert "did not answer" in run(*words, "--insecure").err
    assert "has no token" in run(*words[:-1], "/dev/null", "--insecure").err
