from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.life import Step, life
from delayboard.dead_letters.life_after import after
from delayboard.dead_letters.life_path import MOST_DEATHS, path_graph, path_picture
from delayboard.models import ItemState, LetterState, ReplayBatch, ReplayItem
from tests.builders import make_broker, make_user
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.topology import strategies
from tests.topology.builders import NOON
from topology import work
from topology.deaths import Death, read_history
from topology.message import Message

LATER = NOON + timedelta(seconds=9)


def steps(message: Message, **stated: Any) -> tuple[Step, ...]:
    return life(message, read_history(message.headers), **stated)


def died(*deaths: Death, **headers: Any) -> Message:
    return a_message(headers=deaths_header(*deaths) | headers)


def ways(message: Message, queue: str = "dead") -> dict[tuple[str, str], str]:
    graph = path_graph(message, read_history(message.headers), queue)
    return {(edge.source, edge.target): edge.kind for edge in graph.edges}


@pytest.mark.parametrize(
    ("headers", "stated", "at", "told"),
    [
        ({}, {}, None, "Nothing tells when."),
        ({}, {"timestamp": 1_700_000_000}, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), "AMQP"),
        (
            {"delayboard-published-at-ms": 1_700_000_000_500, "timestamp_in_ms": 5},
            {"timestamp": 1},
            datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC),
            "Delayboard’s own stamp",
        ),
        (
            {"NServiceBus.TimeSent": "2026-01-02 03:04:05:000006 Z"},
            {},
            datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
            "NServiceBus.TimeSent",
        ),
    ],
)
def test_it_begins_with_its_publication_and_who_says_when(
    headers: dict[str, Any], stated: dict[str, Any], at: datetime | None, told: str
) -> None:
    first = steps(a_message(headers=headers, **stated))[0]
    assert (first.what, first.at, first.is_inferred) == ("published", at, at is None)
    assert told in first.told


def test_rounds_have_a_first_and_a_last_that_has_no_time() -> None:
    retry = a_death("retry", "expired", count=3, first_at=LATER)
    message = died(
        a_death(count=4),
        retry,
        **{"x-last-death-queue": "orders", "x-last-death-reason": "rejected"},
    )
    found = steps(message, queue="dead")
    assert [(s.what, s.place, s.at) for s in found] == [
        ("published", "orders", None),
        ("rejected", "orders", NOON),
        ("expired", "retry", LATER),
        ("rejected for the last time", "orders", None),
        ("lies", "dead", None),
    ]
    assert f"Not before {LATER:%Y-%m-%d %H:%M:%S} UTC" in found[3].told
    assert not found[3].is_inferred


def test_before_4_0_the_last_death_is_inferred_from_the_list() -> None:
    message = died(a_death(count=2), a_death("retry", "expired", first_at=LATER))
    last = steps(message)[-1]
    assert (last.what, last.is_inferred) == ("rejected for the last time", True)


def test_one_that_died_once_each_has_no_last_time_apart() -> None:
    message = died(a_death("retry", "expired", first_at=LATER), a_death())
    assert [s.kind for s in steps(message)] == ["start", "death", "death"]


def test_the_way_goes_from_each_death_to_the_next_and_to_where_it_lay() -> None:
    message = died(a_death("retry", "expired", first_at=LATER, exchange="again"), a_death())
    assert ways(message) == {
        ("exchange/orders", "queue/orders"): "binding",
        ("queue/orders", "exchange/again"): "dead-letter",
        ("exchange/again", "queue/retry"): "binding",
        ("queue/retry", "queue/dead"): "dead-letter",
    }


def test_what_is_inferred_is_drawn_otherwise() -> None:
    tied = died(a_death("b", exchange=""), a_death("a", exchange=""))
    assert ways(tied)["queue/a", "queue/b"] == "alternate"
    rounds = died(
        a_death(count=2), a_death("retry", "expired", count=2, first_at=LATER, exchange="again")
    )
    assert ways(rounds)["queue/retry", "exchange/orders"] == "alternate"


def test_of_very_many_deaths_both_ends_are_drawn() -> None:
    deaths = [a_death(f"q{n}", first_at=NOON + timedelta(seconds=n)) for n in range(1000)]
    graph = path_graph(died(*deaths), read_history(died(*deaths).headers), "dead")
    names = {node.name for node in graph.nodes if node.kind == "queue"}
    assert len(names) == MOST_DEATHS + 1
    assert {"q0", "q999", "dead"} <= names


def test_one_that_never_died_has_no_picture() -> None:
    message = a_message(headers={})
    assert path_picture(message, read_history({}), "dead") == ""
    nameless = died(a_death(""))
    assert path_picture(nameless, read_history(nameless.headers), "dead") == ""


entries = st.lists(
    st.dictionaries(
        st.sampled_from(["count", "reason", "queue", "time", "exchange", "routing-keys"]),
        strategies.header_values | st.sampled_from(["", "a", "b", 2]),
    ),
    max_size=4,
)


@given(
    st.fixed_dictionaries(
        {"x-death": entries},
        optional={
            "x-last-death-queue": strategies.header_values,
            "x-last-death-reason": strategies.header_values,
            "delayboard-published-at-ms": strategies.header_values,
            "NServiceBus.TimeSent": strategies.header_values,
        },
    ),
    st.text(max_size=4),
)
def test_every_history_has_a_life_and_a_way(headers: dict[str, Any], queue: str) -> None:
    message = Message("", "dead", a_message(headers={}).properties, b"")
    object.__setattr__(message.properties, "headers", headers)
    history = read_history(headers)
    assert life(message, history, queue=queue)
    graph = path_graph(message, history, queue)
    ids = {node.id for node in graph.nodes}
    assert all({edge.source, edge.target} <= ids for edge in graph.edges)


@pytest.mark.django_db
def test_what_came_of_it_is_told_in_order() -> None:
    broker, user = make_broker(), make_user("ada")
    first, second = parked(broker, a_message(), a_message())
    asked = work.ask("replay", 1, broker=broker, user=user)
    batch = ReplayBatch.objects.create(broker=broker, queue="dead", work=asked)
    ReplayItem.objects.create(
        batch=batch,
        position=1,
        content_id=first.content_id,
        size=2,
        state=ItemState.DONE,
        ended_at=LATER,
        target_exchange="orders",
    )
    first.state, first.state_by = LetterState.DISCARDED, user
    first.state_at = LATER + timedelta(seconds=1)
    first.save()
    second.repeat_of = first
    second.save()
    assert [(s.what, s.place) for s in after(first)] == [
        ("parked", "dead"),
        (f"parked as {second.pk} with the same content", "dead"),
        ("replayed: done", "orders"),
        ("discarded", ""),
    ]
    assert "By ada." in after(first)[-1].told
    assert "may stand here twice" in after(second)[1].told
    first.state, first.repeat_of = LetterState.PARKED, None
    assert after(first)[-1].what == "restored"
