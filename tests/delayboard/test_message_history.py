from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.message_history import (
    MOST_DEATHS,
    Step,
    build_history,
    build_later_steps,
    path_diagram,
    path_graph,
)
from delayboard.models import BatchState, ItemState, ParkedMessage, ParkedState, ReplayBatch
from delayboard.models.replay import ReplayEdit, ReplayOutcome
from delayboard.templatetags.delayboard import page_url
from tests.builders import make_broker, make_user
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.delayboard.replay_rows import a_batch
from tests.topology import strategies
from tests.topology.builders import NOON
from topology.deaths import Death, read_history
from topology.message import REPLAY_HEADER, Message
from topology.redaction import NOTHING, Redaction

pytestmark = pytest.mark.both_databases

LATER = NOON + timedelta(seconds=9)


def steps(message: Message) -> tuple[Step, ...]:
    return build_history(message, read_history(message.headers))


def died(*deaths: Death, **headers: Any) -> Message:
    return a_message(headers=deaths_header(*deaths) | headers)


def ways(message: Message, queue: str = "dead") -> dict[tuple[str, str], str]:
    graph = path_graph(message, read_history(message.headers), queue)
    return {(edge.source, edge.target): edge.kind for edge in graph.edges}


@pytest.mark.parametrize(
    ("headers", "stated", "at", "reported"),
    [
        ({}, {}, None, "The time is not recorded."),
        ({}, {"timestamp": 1_700_000_000}, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), "AMQP"),
        (
            {"delayboard-published-at-ms": 1_700_000_000_500, "timestamp_in_ms": 5},
            {"timestamp": 1},
            datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC),
            "Delayboard’s timestamp",
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
    headers: dict[str, Any], stated: dict[str, Any], at: datetime | None, reported: str
) -> None:
    first = steps(a_message(headers=headers, **stated))[0]
    assert (first.what, first.at, first.is_inferred) == ("published", at, at is None)
    assert reported in first.detail


def test_rounds_have_a_first_and_a_last_that_has_no_time() -> None:
    retry = a_death("retry", "expired", count=3, first_at=LATER)
    message = died(
        a_death(count=4),
        retry,
        **{"x-last-death-queue": "orders", "x-last-death-reason": "rejected"},
    )
    found = steps(message)
    assert [(s.what, s.place, s.at) for s in found] == [
        ("published", "orders", None),
        ("rejected", "orders", NOON),
        ("expired", "retry", LATER),
        ("last rejected", "orders", None),
    ]
    assert f"Not before {LATER:%Y-%m-%d %H:%M:%S} UTC" in found[3].detail
    assert not found[3].is_inferred


def test_before_4_0_the_last_death_is_inferred_from_the_list() -> None:
    message = died(a_death(count=2), a_death("retry", "expired", first_at=LATER))
    last = steps(message)[-1]
    assert (last.what, last.is_inferred) == ("last rejected", True)


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
    assert path_diagram(message, read_history({}), "dead") == ""
    nameless = died(a_death(""))
    assert path_diagram(nameless, read_history(nameless.headers), "dead") == ""


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
    assert build_history(message, history)
    graph = path_graph(message, history, queue)
    ids = {node.id for node in graph.nodes}
    assert all({edge.source, edge.target} <= ids for edge in graph.edges)


@pytest.mark.django_db
def test_what_came_of_it_is_told_in_order() -> None:
    broker, user = make_broker(), make_user("ada")
    first, second = parked(broker, a_message(), a_message())
    batch = a_batch(broker, [first], BatchState.DONE, [ItemState.DONE])
    batch.items.update(ended_at=LATER)
    first.state, first.state_by = ParkedState.DISCARDED, user
    first.state_at = LATER + timedelta(seconds=1)
    first.save()
    second.repeat_of = first
    second.save()
    assert [(s.what, s.place) for s in build_later_steps(first)] == [
        ("parked", "dead"),
        (f"equal message {second.pk} parked", "dead"),
        (f"replayed in replay {batch.pk}", "orders"),
        ("discarded", ""),
    ]
    assert "By ada." in build_later_steps(first)[-1].detail
    assert "may have parked the same message twice" in build_later_steps(second)[1].detail
    second.state_at = LATER
    assert build_later_steps(second)[-1].what == "restored"


@pytest.mark.django_db
def test_all_steps_are_in_the_order_of_their_times() -> None:
    """An equal message was parked before this one died; the publication has no time."""
    broker = make_broker()
    first, second = parked(broker, a_message(), a_message())
    ParkedMessage.objects.filter(pk=first.pk).update(parked_at=NOON - timedelta(hours=1))
    second.parked_at = second.state_at = NOON + timedelta(hours=1)
    message = died(a_death(), a_death("retry", "expired", first_at=LATER))
    history = read_history(message.headers)
    found = build_history(message, history, then=build_later_steps(second))
    assert [(step.kind, step.at) for step in found] == [
        ("start", None),
        ("now", NOON - timedelta(hours=1)),
        ("death", NOON),
        ("death", LATER),
        ("now", NOON + timedelta(hours=1)),
    ]


def a_replay(*states: ItemState, **stated: Any) -> tuple[ParkedMessage, ReplayBatch]:
    """A message that was in such a replay."""
    broker = make_broker()
    (parked_message,) = parked(broker, a_message())
    batch = a_batch(broker, [parked_message], BatchState.DONE, states)
    batch.items.update(**stated)
    return parked_message, batch


def reported(parked_message: ParkedMessage, rules: Redaction = NOTHING) -> list[str]:
    return [step.what for step in build_later_steps(parked_message, rules)[1:]]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("outcome", "what"),
    [
        (ReplayOutcome.DELIVERED, "delivered (observed)"),
        (ReplayOutcome.DELAYED, "sent to a delay"),
        (ReplayOutcome.DIED, "dead-lettered again"),
        (ReplayOutcome.UNOBSERVED, "not observed"),
    ],
)
def test_what_was_seen_after_a_replay_is_told(outcome: ReplayOutcome, what: str) -> None:
    parked_message, batch = a_replay(
        ItemState.DONE, ended_at=NOON, outcome=outcome, outcome_at=LATER
    )
    assert reported(parked_message) == [f"replayed in replay {batch.pk}", what]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "what"),
    [
        (ItemState.RETURNED, "not sent in replay {}: returned (unroutable)"),
        (ItemState.CANCELLED, "not sent in replay {}: cancelled"),
        (ItemState.UNKNOWN, "possibly sent in replay {}: may have arrived"),
        (ItemState.PUBLISHING, "in replay {}: publishing"),
    ],
)
def test_what_was_not_sent_is_told_with_the_reason(state: ItemState, what: str) -> None:
    parked_message, batch = a_replay(state, error="Because.", may_be_duplicated=True)
    assert reported(parked_message) == [what.format(batch.pk)]
    assert build_later_steps(parked_message)[1].detail == "The message may be duplicated. Because."


@pytest.mark.django_db
def test_a_draft_did_nothing_to_a_parked_message() -> None:
    parked_message, batch = a_replay(ItemState.PENDING)
    type(batch).objects.update(state=BatchState.DRAFT, started_at=None)
    assert reported(parked_message) == []


@pytest.mark.django_db
def test_a_parked_message_that_a_replay_let_go_of_was_not_restored() -> None:
    parked_message, batch = a_replay(ItemState.RETURNED)
    type(batch).objects.update(claimed_to=1)
    parked_message.state_at = LATER
    assert "restored" not in reported(parked_message)


@pytest.mark.django_db
def test_a_message_that_died_again_and_its_parked_message_lead_to_each_other() -> None:
    parked_message, batch = a_replay(ItemState.DONE, ended_at=NOON)
    item = batch.items.get()
    (again,) = parked(parked_message.broker, a_message(headers={REPLAY_HEADER: item.replay_id}))
    steps_after = build_later_steps(parked_message)
    assert not [step for step in steps_after if step.what.startswith("equal message")]
    step = steps_after[2]
    assert (step.what, page_url(step.page)) == (
        f"dead-lettered again as parked message {again.pk}",
        page_of(again),
    )
    first = build_later_steps(again)[0]
    assert (
        f"It is parked message {parked_message.pk}, dead-lettered again after replay {batch.pk}."
        in first.detail
    )
    assert page_url(first.page) == page_of(parked_message)
    parked_message.delete()
    first = build_later_steps(again)[0]
    assert (
        f"Dead-lettered again after replay {batch.pk}." in first.detail,
        page_url(first.page),
    ) == (
        True,
        reverse("replay_batch", args=[batch.pk]),
    )


@pytest.mark.django_db
def test_a_message_that_names_a_replay_and_is_another_did_not_come_from_it() -> None:
    parked_message, batch = a_replay(ItemState.DONE, ended_at=NOON)
    name = batch.items.get().replay_id
    (other,) = parked(parked_message.broker, a_message(b"other", headers={REPLAY_HEADER: name}))
    assert reported(parked_message) == [f"replayed in replay {batch.pk}"]
    first = build_later_steps(other)[0]
    assert (first.detail, first.page) == ("Stored in Delayboard and removed from the queue.", ())


def page_of(parked_message: ParkedMessage) -> str:
    return reverse("parked_message", args=[parked_message.broker.slug, parked_message.pk])


@pytest.mark.django_db
def test_an_edit_is_told_and_a_hidden_history_hides_the_target() -> None:
    parked_message, batch = a_replay(ItemState.DONE, ended_at=NOON, error="secret")
    ReplayEdit.objects.create(
        item=batch.items.get(), properties=b"", body=parked_message.body, edited_at=NOON
    )
    step = build_later_steps(parked_message)[1]
    assert "with routing key orders" in step.detail
    assert "Edited" in step.detail
    step = build_later_steps(parked_message, Redaction(header_patterns=("x-death",)))[1]
    assert "orders" not in step.detail + step.place
    assert "secret" not in step.detail
