"""What the replay command understands, before anything is chosen or sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from delayboard.dead_letters import search
from delayboard.dead_letters.queues.confirmed import make_query
from delayboard.management import confirmation
from delayboard.management.commands import replay_dead_letters
from delayboard.management.commands.replay_dead_letters import Command
from delayboard.models.replay import TargetMode
from tests.builders import make_broker, make_user
from tests.commands import run
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import draft
from topology.content.text import count_text, make_printable
from topology.management.find_rows import find_broker
from topology.models import Broker, Role, Topology

pytestmark = pytest.mark.django_db

NASTY = 'a" state:any *\\ "b'


def given(*said: str) -> dict[str, Any]:
    parser = Command().create_parser("manage.py", "replay_dead_letters")
    assert isinstance(parser, CommandParser)
    return vars(parser.parse_args(["shop", *said]))


def options(broker: Broker, *said: str) -> Any:
    return replay_dead_letters._read_options(broker, given(*said))


@pytest.mark.parametrize(
    "said",
    [
        (),
        ("--parked-message", "1", "--group", "2"),
        ("--resume", "1", "--cancel", "1"),
        ("--resume", "1", "--dry-run"),
    ],
)
def test_nothing_or_two_things_to_replay_are_a_misuse(said: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as reported:
        replay_dead_letters.find_action(given(*said))
    assert reported.value.returncode == 2


def test_of_two_choices_only_one_is_taken() -> None:
    with pytest.raises(CommandError) as reported:
        replay_dead_letters.find_action(
            given("--parked-message", "30", "--group", "1", "--query", "dead")
        )
    assert str(reported.value) == "Say only one of --parked-message, --group and --query."


def test_an_empty_search_is_a_choice() -> None:
    assert replay_dead_letters.find_action(given("--query", "")) == "query"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (("--rate", "fast"), "--rate: Enter 0.001 to 100\u202f000 messages per second"),
        (("--canary", "-1"), "--canary: "),
        (("--key", "a"), "--to-exchange and --key go together."),
        (("--to-exchange", "a"), "--to-exchange and --key go together."),
        (("--to-exchange", "a", "--key", "b", "--through", "c"), "Say one of --to-exchange"),
        (("--delay", "10m"), "--through and --delay go together."),
        (("--through", "nothing", "--delay", "1m"), "The topology “nothing” does not exist."),
    ],
)
def test_what_cannot_be_read_is_named_by_its_option(
    broker: Broker, said: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(CommandError) as reported:
        replay_dead_letters.create_draft_of(None, broker, "query", given("--query", "", *said))
    assert sentence in str(reported.value)
    assert reported.value.returncode == 2


def test_all_that_is_wrong_is_said_at_once(broker: Broker) -> None:
    with pytest.raises(CommandError, match=r"--rate: .*--canary: "):
        replay_dead_letters.create_draft_of(
            None, broker, "query", given("--rate", "x", "--canary", "y")
        )


def test_everything_that_was_said_is_an_option(broker: Broker, pair: Topology) -> None:
    read = options(
        broker, "--through", pair.slug, "--delay", "10m", "--rate", "2.5", "--canary", "3"
    )
    assert (read.mode, read.topology_id, read.key) == (TargetMode.DELAY, pair.pk, "")
    assert (read.delay, read.rate, read.canary) == (timedelta(minutes=10), 2.5, 3)


def test_the_default_exchange_is_a_target(broker: Broker) -> None:
    read = options(broker, "--to-exchange", "", "--key", "orders")
    assert (read.mode, read.exchange, read.key) == (TargetMode.TYPED, "", "orders")
    assert options(broker).mode == TargetMode.DEFAULT


def test_another_brokers_topology_group_and_replay_are_none_of_this_one(
    broker: Broker, pair: Topology
) -> None:
    other = make_broker(name="Other")
    with pytest.raises(CommandError, match=f"The topology “{pair.slug}” does not exist"):
        options(other, "--through", pair.slug, "--delay", "1m")
    (parked_message,) = parked(broker, a_message())
    with pytest.raises(CommandError, match=f"Other has no group {parked_message.group_id}."):
        replay_dead_letters.create_draft_of(
            None, other, "group", given("--group", str(parked_message.group_id))
        )
    with pytest.raises(CommandError, match=r"Other has no replay 1\."):
        replay_dead_letters.find_batch(other, 1)


def test_no_sign_of_a_queues_name_belongs_to_the_search(broker: Broker) -> None:
    (parked_message,) = parked(broker, a_message(), queue=NASTY)
    parked(broker, a_message(), queue="other")
    query = make_query(NASTY)
    assert [found.pk for found in search.matching(None, broker, query)] == [parked_message.pk]


def test_a_user_needs_to_exist_and_the_role_operator(broker: Broker, user: User) -> None:
    assert confirmation.find_user(None, broker) is None
    assert confirmation.find_user("ann", broker) == user
    make_user("vic", Role.VIEWER, broker)
    with pytest.raises(CommandError, match="“vic” does not have the role operator on Test broker"):
        confirmation.find_user("vic", broker)
    with pytest.raises(CommandError, match="There is no account “bob”") as reported:
        confirmation.find_user("bob", broker)
    assert reported.value.returncode == 2


def test_an_unknown_broker_is_a_misuse_that_names_the_known_ones(broker: Broker) -> None:
    with pytest.raises(CommandError, match=f"Existing brokers: {broker.slug}") as reported:
        find_broker("nowhere")
    assert reported.value.returncode == 2


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    assert make_printable("a\x1b[2Jb\nc\u202e") == "a�[2Jb�c�"
    assert make_printable(count_text(1200)) == count_text(1200)
    assert len(make_printable("x" * 1000)) == 200


def test_an_operator_requests_the_approval_of_another_one() -> None:
    batch = draft(make_broker())
    Broker.objects.update(needs_approval=True)
    make_user("ann", Role.OPERATOR)
    words = ("replay_dead_letters", batch.broker.slug, "--resume", str(batch.pk), "--yes")
    ended = run(*words, "--user", "ann")
    assert (ended.code, "approval of a second person is requested" in ended.err) == (1, True)
