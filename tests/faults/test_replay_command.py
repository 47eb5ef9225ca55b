"""The replay command as a process: its exit codes, a dry run, being killed, following a worker."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
from django.utils import timezone
from pytest_django import Settings

from delayboard.dead_letters.replay import batch_state, make_draft, send_batch
from delayboard.dead_letters.replay.options import Options
from delayboard.dead_letters.replay.targets import redirect_group
from delayboard.models import MessageGroup, ParkedMessage, ParkedState, ReplayBatch
from delayboard.models.replay import BatchState, ItemState
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker, make_user
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.faults.forking import Fork, forked
from tests.faults.processes import environment, started
from tests.topology.builders import a_queue
from topology import work
from topology.broker.amqp.consumer import getter
from topology.broker.management.client import Management
from topology.definitions import Binding, Exchange
from topology.message import REPLAY_HEADER
from topology.models import AuditEntry, Broker, Role, Work, WorkState

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE = 90.0
COMMAND = "replay_dead_letters"


class Ended(NamedTuple):
    code: int
    said: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said.splitlines() if line.startswith("{")]


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    """An exchange and a queue `orders`, in which the messages of these tests were rejected."""
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("orders"))
        management.declare_queue(a_queue("orders"))
        management.bind(Binding("orders", "orders", "orders"))
    return make_broker(vhost)


def good(broker: Broker, number: int = 1) -> list[ParkedMessage]:
    return parked(broker, *(a_message(b"%d" % n, message_id=f"m{n}") for n in range(number)))


def bad(broker: Broker) -> list[ParkedMessage]:
    """One whose rule leads nowhere."""
    other = deaths_header(a_death("other"))
    parked_messages = parked(broker, a_message(b"bad", other, message_id="bad"))
    redirect_group(None, parked_messages[0].group, "orders", "nowhere")
    return parked_messages


def ran(*said: str) -> Ended:
    with forked(COMMAND, *said) as process:
        return ends_with(process)


def by_parked_messages(*parked_messages: ParkedMessage) -> list[str]:
    return [
        word
        for parked_message in parked_messages
        for word in ("--parked-message", str(parked_message.pk))
    ]


def the_batch() -> ReplayBatch:
    return ReplayBatch.objects.latest("pk")


def states() -> Counter[str]:
    return Counter(ParkedMessage.objects.values_list("state", flat=True))


def drained(vhost: Vhost) -> list[tuple[str, str]]:
    """Message id and replay id of what is in `orders`."""
    found = []
    with getter(address_of(vhost), "orders") as source:
        while delivery := source.get():
            source.ack([delivery.tag])
            message = delivery.message
            found.append((message.properties.message_id or "", message.headers[REPLAY_HEADER]))
    return found


def test_all_done_ends_with_0_and_the_counts(vhost: Vhost, broker: Broker) -> None:
    good(broker, 3)
    with started(COMMAND, broker.slug, "--query", "", variables=environment()) as process:
        out, _ = process.communicate(timeout=PATIENCE)
    ended = Ended(process.returncode, out.decode())
    assert ended.code == 0, ended.said
    assert "3 would arrive" in ended.said
    counts = "3 done, 0 returned, 0 failed, 0 unknown, 0 cancelled, 0 excluded, 0 pending"
    assert f"3 selected = {counts}" in ended.said
    assert states() == {"replayed": 3}
    assert sorted(name for name, _ in drained(vhost)) == ["m0", "m1", "m2"]
    entry = AuditEntry.objects.get(action="replay started")
    assert entry.username == "delayboard"


@pytest.mark.parametrize("way", ["parked_messages", "query"])
def test_each_choice_chooses(vhost: Vhost, broker: Broker, way: str) -> None:
    parked_messages = good(broker, 2)
    parked(broker, a_message(b"other", message_id="other"), queue="elsewhere")
    choices = {
        "parked_messages": by_parked_messages(*parked_messages),
        "query": ["--query", "queue:dead"],
    }
    ended = ran(broker.slug, *choices[way])
    assert ended.code == 0, ended.said
    assert states() == {"replayed": 2, "parked": 1}


def test_a_bad_verdict_starts_nothing_and_ends_with_1(vhost: Vhost, broker: Broker) -> None:
    parked_messages = good(broker) + bad(broker)
    ended = ran(broker.slug, *by_parked_messages(*parked_messages))
    assert ended.code == 1
    batch = the_batch()
    assert f"--resume {batch.pk} --yes" in ended.said
    assert (batch.state, states(), drained(vhost)) == (BatchState.DRAFT, {"parked": 2}, [])


def test_some_done_ends_with_3_and_says_why_the_others_are_not(
    vhost: Vhost, broker: Broker
) -> None:
    parked_messages = good(broker) + bad(broker)
    ended = ran(broker.slug, *by_parked_messages(*parked_messages), "--yes")
    assert ended.code == 3, ended.said
    assert states() == {"parked": 1, "replayed": 1}
    failed = the_batch().items.exclude(state=ItemState.DONE).get()
    assert failed.error[:40] in ended.said


def test_none_done_ends_with_1(broker: Broker) -> None:
    assert ran(broker.slug, *by_parked_messages(*bad(broker)), "--yes").code == 1
    ended = ran(broker.slug, "--query", "state:discarded")
    assert ended.code == 1
    assert "Nothing was replayed. " in ended.said


def test_what_makes_no_sense_ends_with_2_and_a_sentence(broker: Broker) -> None:
    for said in (
        (broker.slug,),
        (broker.slug, "--parked-message", "x"),
        (broker.slug, "--query", "", "--rate", "0"),
        ("nowhere", "--query", ""),
    ):
        ended = ran(*said)
        assert (ended.code, "Traceback" in ended.said) == (2, False), ended.said
    assert not ReplayBatch.objects.exists()


def test_a_broker_that_is_away_is_said_in_one_sentence() -> None:
    away = make_broker()
    parked_messages = good(away)
    ended = ran(away.slug, *by_parked_messages(*parked_messages))
    assert (ended.code, "Traceback" in ended.said) == (2, False), ended.said
    assert "Nothing was replayed. " in ended.said
    assert states() == {"parked": 1}


@pytest.mark.parametrize(("kinds", "code"), [("good", 0), ("bad", 1), ("good bad", 3)])
def test_a_dry_run_changes_nothing_and_its_code_says_how_many_are_good(
    vhost: Vhost, broker: Broker, kinds: str, code: int
) -> None:
    parked_messages = [
        parked_message
        for kind in kinds.split()
        for parked_message in {"good": good, "bad": bad}[kind](broker)
    ]

    def everything() -> list[Any]:
        return [
            list(model.objects.order_by("pk").values()) for model in (ParkedMessage, MessageGroup)
        ]

    before = everything()
    ended = ran(broker.slug, *by_parked_messages(*parked_messages), "--dry-run", "-v", "2")
    assert ended.code == code, ended.said
    assert (everything(), drained(vhost)) == (before, [])
    assert not AuditEntry.objects.filter(action="replay started").exists()
    for position, parked_message in enumerate(parked_messages, start=1):
        assert re.search(rf"^  (! )?{position}\. {parked_message.message_id} to ", ended.said, re.M)
    batch = the_batch()
    assert batch.state == BatchState.DRAFT
    assert ran(broker.slug, "--resume", str(batch.pk), "--yes").code == code
    assert batch.items.count() == len(parked_messages)


def test_json_lines_tell_the_same(broker: Broker) -> None:
    parked_messages = good(broker, 2) + bad(broker)
    ended = ran(broker.slug, *by_parked_messages(*parked_messages), "--yes", "--json", "-v", "2")
    kinds = Counter(line["kind"] for line in ended.lines)
    assert kinds == {"route": 2, "message": 3, "dry-run": 1, "replay": 1}
    messages = [line for line in ended.lines if line["kind"] == "message"]
    assert [line["parked_message"] for line in messages] == [
        parked_message.pk for parked_message in parked_messages
    ]
    assert [line["is_good"] for line in messages] == [True, True, False]
    (dry,) = (line for line in ended.lines if line["kind"] == "dry-run")
    assert (dry["selected"], dry["good"]) == (3, 2)
    reported = ended.lines[-1]
    assert (reported["kind"], reported["state"], reported["selected"], reported["done"]) == (
        "replay",
        "done",
        3,
        2,
    )
    counts = ("done", "returned", "failed", "unknown", "cancelled", "pending")
    assert sum(reported[name] for name in counts) == 3


def test_with_a_user_their_rights_and_name_hold(broker: Broker) -> None:
    parked_messages = good(broker)
    make_user("ann", Role.OPERATOR, broker)
    make_user("vic", Role.VIEWER, broker)
    refused = ran(broker.slug, *by_parked_messages(*parked_messages), "--user", "vic")
    assert (refused.code, states()) == (1, {"parked": 1})
    assert ran(broker.slug, *by_parked_messages(*parked_messages), "--user", "ann").code == 0
    assert AuditEntry.objects.get(action="replay started").username == "ann"


def slow(broker: Broker, *more: str, rate: str = "20") -> tuple[str, ...]:
    return (broker.slug, "--query", "", "--rate", rate, *more)


def under_way(number: int) -> ReplayBatch:
    def found() -> ReplayBatch | None:
        return ReplayBatch.objects.filter(done__gte=number).first()

    return eventually(found, f"{number} are done", seconds=PATIENCE)


def ends_with(process: Fork) -> Ended:
    return Ended(process.wait(PATIENCE), process.said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_not_the_replay(
    vhost: Vhost, broker: Broker, number: signal.Signals
) -> None:
    good(broker, 200)
    with forked(COMMAND, *slow(broker)) as process:
        batch = under_way(5)
        process.send_signal(number)
        ended = ends_with(process)
    assert ended.code == 130, ended.said
    assert f"no worker runs. Resume with --resume {batch.pk}." in ended.said
    batch.refresh_from_db()
    assert (batch.state, 0 < batch.done < 200) == (BatchState.RUNNING, True)
    assert not batch.items.filter(state=ItemState.PUBLISHING).exists()
    assert batch.work is not None
    assert batch.work.state == WorkState.WAITING
    ReplayBatch.objects.update(rate=None)
    assert ran(broker.slug, "--resume", str(batch.pk)).code == 0
    assert Counter(name for name, _ in drained(vhost)) == {f"m{n}": 1 for n in range(200)}


def test_after_a_kill_it_is_resumed_and_what_came_twice_has_one_replay_id(
    vhost: Vhost, broker: Broker
) -> None:
    good(broker, 500)
    with forked(COMMAND, *slow(broker, rate="400")):
        batch = under_way(20)
    Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
    ReplayBatch.objects.update(rate=None)
    ended = ran(broker.slug, "--resume", str(batch.pk))
    assert ended.code == 0, ended.said
    came = Counter(drained(vhost))
    assert {name for name, _ in came} == {f"m{n}" for n in range(500)}
    assert len(came) == 500
    batch.refresh_from_db()
    twice = {replay_id for (_, replay_id), times in came.items() if times > 1}
    marked = batch.items.filter(may_be_duplicated=True)
    assert twice <= {item.replay_id for item in marked.select_related("batch")}
    assert (batch.done, batch.doubled) == (500, marked.count())


def test_another_pauses_resumes_and_cancels_it(vhost: Vhost, broker: Broker) -> None:
    good(broker, 200)
    with forked(COMMAND, *slow(broker, rate="5")) as process:
        batch = under_way(5)
        paused = ran(broker.slug, "--pause", str(batch.pk))
        ended = ends_with(process)
    assert (paused.code, ended.code) == (0, 3), (paused.said, ended.said)
    assert f"Resume with --resume {batch.pk}" in ended.said
    with forked(COMMAND, broker.slug, "--resume", str(batch.pk)) as going:
        under_way(the_batch().done + 5)
        cancelled = ran(broker.slug, "--cancel", str(batch.pk))
        ended = ends_with(going)
    assert (cancelled.code, ended.code) == (0, 3), (cancelled.said, ended.said)
    batch.refresh_from_db()
    assert (batch.state, batch.pending) == (BatchState.CANCELLED, 0)
    assert states() == {"replayed": batch.done, "parked": batch.cancelled}
    assert len(drained(vhost)) == batch.done
    again = ran(broker.slug, "--cancel", str(batch.pk))
    assert (again.code, "has ended" in again.said) == (1, True)


def test_within_the_time_for_undo_nothing_is_published(vhost: Vhost, broker: Broker) -> None:
    good(broker, 3)
    assert ran(broker.slug, "--query", "", "--dry-run").code == 0
    ReplayBatch.objects.update(undo_seconds=600)
    with forked(COMMAND, broker.slug, "--resume", str(the_batch().pk)) as process:
        batch = eventually(
            ReplayBatch.objects.filter(state=BatchState.WAITING).first, "it waits", seconds=PATIENCE
        )
        assert ran(broker.slug, "--cancel", str(batch.pk)).code == 0
        assert ends_with(process).code == 1
    assert (states(), drained(vhost)) == ({"parked": 3}, [])


def test_it_only_follows_what_a_worker_does(vhost: Vhost, broker: Broker) -> None:
    parked_messages = good(broker, 3)
    batch = make_draft.draft_messages(
        None, broker, [parked_message.pk for parked_message in parked_messages], Options()
    )
    batch_state.start(None, batch, despite_verdict=False)
    claimed = work.claim((batch_state.KIND,), "a worker")
    assert claimed is not None
    with forked(COMMAND, broker.slug, "--resume", str(batch.pk)) as process:
        eventually(lambda: "0 of 3 done" in process.said, "it follows", seconds=PATIENCE)
        work.attempt(send_batch.replay, claimed, stop=Event())
        ended = ends_with(process)
    assert (ended.code, "3 done" in ended.said) == (0, True), ended.said
    claimed.refresh_from_db()
    assert (claimed.owner, claimed.fence) == ("a worker", 1)
    assert states() == {ParkedState.REPLAYED: 3}
    assert len(drained(vhost)) == 3
