"""Services with real client libraries: what Delayboard says of them is what they log themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from delayboard.dead_letters.replay import make_draft
from delayboard.dead_letters.replay.options import Options
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker, make_user
from tests.outside.client_programs import CLIENTS, Client, Line, Written, running
from tests.real_broker.replaying import arrived, came_back_clean, draft, park, replayed
from topology.broker.amqp.consumer import getter
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.delays import milliseconds
from topology.findings.find import Finder
from topology.findings.hit import Severity
from topology.message import REPLAYS_HEADER, Message
from topology.models import Broker, Role
from topology.routing.trace_route import ask
from topology.snapshot import Snapshot

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

ROUNDS = 2
# A clock's rounding, and what a busy machine takes.
EARLY_MS, LATE_MS = 2, 5000
HOUR_MS = 3_600_000


@pytest.fixture
def broker(vhost: Vhost, settings: Settings, tmp_path: Path) -> Broker:
    settings.EVENT_LOG = tmp_path / "log"
    return make_broker(vhost)


@pytest.fixture
def operator() -> User:
    return make_user("ada", Role.OPERATOR)


@pytest.mark.generations("4.3")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_s_route_findings_and_dead_letters(
    vhost: Vhost, broker: Broker, operator: User, name: str
) -> None:
    client = CLIENTS[name]
    delay = client.wait_ms
    with running(client, vhost, delays_ms=[delay], failing=1, hopeless=1, rounds=ROUNDS) as written:
        written.await_ends(3)
        snapshot = eventually(lambda: consumed(broker, client), "the consumer is reported")
        each_round_is_on_time(written)
        arrives_as_logged(client, snapshot, written, delay)
        if client.dead:
            starts_afresh(broker, operator, client, written)
        dead = peeked(vhost, client.dead) if client.dead else None
    findings = Finder().find(broker.pk, snapshot)
    severe = {one.rule.id for one in findings if one.severity >= Severity.STUCK}
    assert severe == set()
    if dead is not None:
        goes_and_comes_back(vhost, broker, operator, client, dead)


@pytest.mark.generations("4.3")
@pytest.mark.parametrize("name", [name for name, one in CLIENTS.items() if one.dead])
def test_a_replayed_group_is_processed_once_with_its_counters_reset(
    vhost: Vhost, broker: Broker, operator: User, name: str
) -> None:
    client, number = CLIENTS[name], 3
    with running(client, vhost, hopeless=number, rounds=ROUNDS) as written:
        written.await_ends(number)
        eventually(lambda: consumed(broker, client), "the consumer is reported")
        parked = park(operator, broker, number, client.dead)
        (group,) = {one.group for one in parked}
        batch = make_draft.draft_group(operator, group, Options())
        assert replayed(operator, batch).done == number
        eventually(lambda: len(written.of("gave up")) == 2 * number, "all are given up again")
        for line in written.of("published"):
            attempts = [one.attempt for one in written.of("attempt", id=line.id)]
            assert attempts == list(range(1, ROUNDS + 2)) * 2
        again = park(operator, broker, number, client.dead)
    assert {one.group for one in again} == {group}


@pytest.mark.generations("4.3")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_delayed_message_waits_where_its_route_says(
    vhost: Vhost, broker: Broker, name: str
) -> None:
    client = CLIENTS[name]
    with running(client, vhost, delays_ms=[HOUR_MS], wait_ms=HOUR_MS, is_consuming=False):
        publish = client.delayed(HOUR_MS)
        (outcome,) = ask(publish, read(broker)).walk.outcomes
        waiting = peeked(vhost, outcome.hops[0].queue if outcome.hops else outcome.queue)
    assert (waiting.exchange, waiting.routing_key) == (publish.exchange, publish.routing_key)
    assert waiting.properties.expiration == publish.expiration
    assert waiting.headers.get("CC") == publish.headers.get("CC")


def read(broker: Broker) -> Snapshot:
    """What Delayboard reads of the vhost."""
    with Management(broker.address) as management:
        snapshot = observe(management)
    assert not snapshot.doubts
    return snapshot


def consumed(broker: Broker, client: Client) -> Snapshot | None:
    """The same once it has the client's consumer."""
    snapshot = read(broker)
    return snapshot if client.queue in snapshot.consumed else None


def peeked(vhost: Vhost, queue: str) -> Message:
    """The message in the queue, as soon as there is one, which stays there."""
    with getter(address_of(vhost), queue) as source:
        delivery = eventually(source.get, f"there is one in {queue}")
        source.give_back()
    return delivery.message


def each_round_is_on_time(written: Written) -> None:
    (delayed,) = (line for line in written.of("published") if line.due_at_ms is not None)
    (given_up,) = written.of("gave up")
    for line in written.of("published"):
        attempts = written.of("attempt", id=line.id)
        rounds = 0 if line == delayed else ROUNDS
        assert [one.attempt for one in attempts] == list(range(1, rounds + 2))
        again = written.of("retrying", id=line.id)
        assert [one.attempt for one in again] == list(range(1, rounds + 1))
        last = written.of("done", "gave up", id=line.id)
        assert [one.attempt for one in last] == [rounds + 1]
        assert all(is_on_time(one) for one in attempts if one.due_at_ms is not None)
    assert given_up.id != delayed.id


def is_on_time(attempt: Line) -> bool:
    assert attempt.due_at_ms is not None
    return -EARLY_MS <= attempt.at_ms - attempt.due_at_ms <= LATE_MS


def arrives_as_logged(client: Client, snapshot: Snapshot, written: Written, delay: int) -> None:
    """The route of the delayed publish ends in the queue, and when the client logged it."""
    (outcome,) = ask(client.delayed(delay), snapshot).walk.outcomes
    if client.holding:
        assert (outcome.ending, outcome.queue) == ("delivered", client.holding)
        assert milliseconds(outcome.after) == 0
        return
    assert (outcome.ending, outcome.queue) == ("delivered", client.queue)
    (delayed,) = (line for line in written.of("published") if line.due_at_ms is not None)
    (arrival,) = written.of("attempt", id=delayed.id)
    assert delayed.due_at_ms is not None
    predicted = delayed.due_at_ms - delay + milliseconds(outcome.after)
    assert predicted == arrival.due_at_ms


def starts_afresh(broker: Broker, operator: User, client: Client, written: Written) -> None:
    """Replayed, the message that the client gave up has all its attempts again."""
    (given_up,) = written.of("gave up")
    before = written.of("attempt", id=given_up.id)
    (parked,) = park(operator, broker, 1, client.dead)
    assert replayed(operator, draft(operator, [parked])).done == 1
    eventually(lambda: len(written.of("gave up")) == 2, "the client gave it up again")
    after = written.of("attempt", id=given_up.id)[len(before) :]
    assert [one.attempt for one in after] == list(range(1, ROUNDS + 2))


def goes_and_comes_back(
    vhost: Vhost, broker: Broker, operator: User, client: Client, dead: Message
) -> None:
    """The dead letter is parked as it is in its queue, and comes back as it was published."""
    (parked,) = park(operator, broker, 1, client.dead)
    assert (parked.message.body, parked.message.properties.raw) == (dead.body, dead.properties.raw)
    batch = draft(operator, [parked], keep_counters=True)
    # With its counters rascal rejects it at once.
    assert (batch.routes.get().ending == "loops") == (client.file == "with_rascal.js")
    batch = replayed(operator, batch, despite_verdict=True)
    assert batch.done == 1, batch.state_why
    (back,) = arrived(vhost, client.queue)
    replays = int(parked.message.headers.get(REPLAYS_HEADER, 0))
    came_back_clean(back, parked, replays=replays + 1)
