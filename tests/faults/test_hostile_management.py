"""Whatever a hostile management API sends, every page says one sentence, soon and in few bytes."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from analytics.recorder import record_firehose as firehose_watch
from delayboard.dead_letters.parked.consume import limits_of
from tests.builders import eventually, make_broker, make_pair, make_user
from tests.faults.every_page import QUERIES, WITHOUT_BROKER, addresses
from tests.faults.hostile_management import (
    ATTACKS,
    MORE_ATTACKS,
    ODD,
    Attack,
    Hostile,
    hostile_management,
    redirect,
    saying,
    send_deep,
    send_gzip_bomb,
    send_html,
    send_tiny_values,
    trickle_body,
    trickle_headers,
)
from topology import snapshots
from topology.broker.address import Address
from topology.broker.errors import Unreachable
from topology.broker.management import answers
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.models import Broker, Role
from topology.operations.connect import try_connection

# Generous: no page takes so long, however slow the machine is.
PAGE_SECONDS = 20.0
# One that goes wrong on its way, one when it is unpacked, one in its fields. A page does not know
# them apart; of the others, as of MORE_ATTACKS, the sentence is tested where all pages read.
ON_EVERY_PAGE = {"a body of one byte at a time", "a gzip bomb", "a number for a name"}
# These say nothing about the state of a broker.


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_BYTES", answers.MEGABYTE)


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    with hostile_management(saying()) as server:
        yield server


@pytest.fixture
def address(hostile: Hostile) -> Address:
    return Address("127.0.0.1", 9, "nowhere", "ann", "secret", hostile.url)


@pytest.fixture
def pages(hostile: Hostile, db: None) -> dict[str, str]:
    """Every page that can be opened, of a broker at this address."""
    broker = make_broker()
    broker.management_urls = hostile.url
    broker.save()
    found = addresses(make_pair(broker))
    snapshots.forget(broker.pk)
    return found


@pytest.fixture
def client(pages: dict[str, str]) -> Client:
    client = Client()
    client.force_login(make_user("ada", Role.ADMIN))
    return client


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        pytest.param(*each, id=name, marks=[] if name in ON_EVERY_PAGE else [pytest.mark.long])
        for name, each in ATTACKS.items()
    ],
)
def test_every_page_says_what_is_wrong(
    hostile: Hostile, pages: dict[str, str], client: Client, attack: Attack, sentence: str
) -> None:
    hostile.attack = attack
    snapshots.poll(Broker.objects.get(), patience=PAGE_SECONDS)
    for name, at in pages.items():
        if name == "logout":
            continue
        began = time.monotonic()
        answer = client.get(at, QUERIES.get(name, {}))
        assert answer.status_code in (200, 302, 405), name
        assert time.monotonic() - began < PAGE_SECONDS, name
        if answer.status_code == 200 and name not in WITHOUT_BROKER and not answer.streaming:
            assert sentence in answer.content.decode(), name


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("attack", ODD.values(), ids=ODD)
def test_every_page_shows_what_can_be_read(
    hostile: Hostile, pages: dict[str, str], client: Client, attack: Attack
) -> None:
    hostile.attack = attack
    known = snapshots.poll(Broker.objects.get(), patience=PAGE_SECONDS)
    for name, at in pages.items():
        if name != "logout":
            queue = {"name": "odd"} if "queue" in name else QUERIES.get(name, {})
            answer = client.get(at, queue)
            assert answer.status_code in (200, 302, 404, 405), name
    assert known.snapshot or known.error


@pytest.mark.parametrize("attack", [trickle_body, trickle_headers])
def test_a_trickle_ends_with_the_call_and_leaves_no_thread(
    hostile: Hostile, address: Address, attack: Attack
) -> None:
    hostile.attack = attack
    before = {thread.ident for thread in threading.enumerate()}
    with Management(address, seconds=0.5) as management:
        began = time.monotonic()
        with pytest.raises(Unreachable, match="did not answer in time"):
            management.overview()
        assert time.monotonic() - began < PAGE_SECONDS
    hostile.stop.set()
    eventually(
        lambda: {thread.ident for thread in threading.enumerate()} <= before, "no thread is left"
    )


def test_calls_of_one_page_share_its_time(hostile: Hostile, address: Address) -> None:
    with Management(address, in_all=0.5) as management:
        management.overview()
        hostile.attack = trickle_body
        with pytest.raises(Unreachable, match="did not answer in time"):
            management.queues()
        visits = hostile.visits
        with pytest.raises(Unreachable, match="did not answer in time"):
            management.queues()
    assert hostile.visits <= visits + 1


@pytest.mark.parametrize("attack", [send_gzip_bomb, send_tiny_values])
def test_what_is_refused_is_never_held_in_memory(
    hostile: Hostile, address: Address, attack: Attack
) -> None:
    """The bomb unpacks to 40 MB; the tiny values would take 20 MB."""
    hostile.attack = attack
    with Management(address) as management:
        tracemalloc.start()
        try:
            with pytest.raises(Unreachable, match="above the limit of 1 MB"):
                management.queues()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 8_000_000


def test_the_password_goes_to_no_other_address(hostile: Hostile, address: Address) -> None:
    hostile.attack = redirect
    with Management(address) as management, pytest.raises(Unreachable, match="redirect to another"):
        management.overview()
    assert hostile.elsewhere == []


@pytest.mark.parametrize(
    ("attack", "sentence"), (ATTACKS | MORE_ATTACKS).values(), ids=ATTACKS | MORE_ATTACKS
)
def test_each_attack_ends_in_a_sentence(
    hostile: Hostile, address: Address, attack: Attack, sentence: str
) -> None:
    hostile.attack = attack
    with Management(address) as management, pytest.raises(Unreachable, match=sentence):
        observe(management)


@pytest.mark.parametrize("attack", [send_gzip_bomb, send_deep, send_html, redirect])
def test_a_trial_of_the_connection_says_it_too(
    hostile: Hostile, address: Address, attack: Attack
) -> None:
    hostile.attack = attack
    sentence = next(words for other, words in ATTACKS.values() if other is attack)
    trial = {trial.name: trial for trial in try_connection(address)}["Management API"]
    assert not trial.works
    assert sentence in trial.sentence


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("attack", [send_gzip_bomb, send_deep])
def test_commands_and_workers_fail_with_the_sentence(
    hostile: Hostile, address: Address, attack: Attack
) -> None:
    hostile.attack = attack
    sentence = next(words for other, words in ATTACKS.values() if other is attack)
    broker = make_broker()
    broker.management_urls = hostile.url
    broker.save()
    with pytest.raises(CommandError, match=sentence):
        call_command("walk", broker.slug, "work", "k")
    with pytest.raises(Unreachable, match=sentence):
        limits_of(broker, "dead")
    with pytest.raises(Unreachable, match=sentence):
        firehose_watch.keep_copying(address, "tap", lambda: True)
