from __future__ import annotations

from dataclasses import replace

import pytest
from django.urls import reverse

from delayboard.dead_letters.parked import groups
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.peek import Budget
from delayboard.models import (
    DeadLetterQueue,
    MessageGroup,
    Parking,
    PeekCount,
    RedactionKind,
    RedactionRule,
    ReplayBatch,
)
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import NOON, a_queue
from topology import snapshots
from topology.definitions import Queue
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db

ADDRESS = "dead_letter_queue"


def known(broker: Broker, queue: Queue, version: str = "4.0.5") -> None:
    know(broker, queue)
    kept = snapshots._latest[broker.pk]
    assert kept.snapshot is not None
    snapshot = replace(kept.snapshot, version=version, numbers={})
    snapshots._latest[broker.pk] = replace(kept, snapshot=snapshot)


def address() -> str:
    return reverse(ADDRESS, args=["test-broker"]) + "?name=dead"


def page(role: Role = Role.OPERATOR) -> str:
    return text_of(signed_in(role).get(address()))


def look(role: Role = Role.OPERATOR) -> str:
    return text_of(signed_in(role).post(address()))


def test_what_a_look_costs_is_told_before_it(broker: Broker) -> None:
    known(broker, a_queue("dead", type="quorum"))
    PeekCount.objects.create(broker=broker, queue="dead", peeks=8, last_at=NOON)
    text = page()
    assert "The first messages have 12 of 20 deliveries left. Each peek uses one" in text
    assert '<button class="primary">Peek messages</button>' in text
    assert "redelivered flag" in text
    assert "You can read parked messages at any time without using a delivery." in text


@pytest.mark.parametrize(
    ("version", "arguments", "said"),
    [
        ("4.0.5", {"x_delivery_limit": 3}, "Delayboard reserves the last 3 for consumers."),
        ("4.0.5", {"x_delivery_limit": -1}, "to the end of the queue"),
        ("4.3.6", {"x_delayed_retry_type": "all"}, "hide every peeked message"),
    ],
)
def test_where_a_look_would_harm_parking_is_offered_with_the_reason(
    broker: Broker, version: str, arguments: dict[str, object], said: str
) -> None:
    known(broker, a_queue("dead", type="quorum", **arguments), version)
    text = page()
    assert said in text
    assert "<button disabled" in text
    assert "You can read parked messages at any time without using a delivery." in text
    refused = look()
    assert "The peek failed." in refused
    assert said in refused


def looked(monkeypatch: pytest.MonkeyPatch, budget: Budget | None = None) -> None:
    message = a_message(b'{"card": 4111, "name": "Ada"}', headers={"token": "s3cret"})
    allowed = peek.Permission(True, (), budget)
    seen = peek.Peek(peek.number_messages([message]), False, allowed)
    monkeypatch.setattr(peek, "peek_queue", lambda *_, **__: seen)


def test_a_message_that_could_not_be_put_back_is_reported_as_parked(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(broker, a_queue("dead", type="quorum"))
    allowed = peek.Permission(False, ("No delivery is left.",), Budget(20, 21))
    seen = peek.Peek(peek.number_messages([a_message()]), True, allowed, has_stored=True)
    monkeypatch.setattr(peek, "peek_queue", lambda *_, **__: seen)
    text = look()
    assert "Delayboard parked this message. The others are back in the queue." in text
    assert "all of them are still in the queue" not in text
    assert "No delivery is left." in text


def test_only_a_post_looks_and_its_answer_is_kept_nowhere(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no reload, bookmark or prefetch costs a message a delivery."""
    known(broker, a_queue("dead"))
    looked(monkeypatch)
    client = signed_in(Role.OPERATOR)
    for address_of_old in (address(), address() + "&look=1"):
        answer = client.get(address_of_old)
        assert "Ada" not in text_of(answer)
    answer = client.post(address())
    assert "Ada" in text_of(answer)
    assert "no-store" in answer["Cache-Control"]
    assert AuditEntry.objects.filter(action="queue peeked").count() == 1
    assert signed_in(Role.VIEWER).post(address()).status_code == 403


def test_a_look_shows_what_they_died_of_above_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(broker, a_queue("dead"))
    rare = a_message(b"1", deaths_header(a_death("invoices", "expired")))
    often = [a_message(b"%d" % n, deaths_header(a_death("orders"))) for n in range(3)]
    parked(broker, often[0])
    group = MessageGroup.objects.get()
    seen = peek.Peek(peek.number_messages([rare, *often]), False, peek.Permission(True, ()))
    monkeypatch.setattr(peek, "peek_queue", lambda *_, **__: seen)
    rows = groups.seen_in(broker, "dead", seen.peeked_messages)
    assert [(row.group.died_in, row.number, row.first) for row in rows] == [
        ("orders", 3, 2),
        ("invoices", 1, 1),
    ]
    assert [row.group.pk for row in rows] == [group.pk, None]
    text = look()
    assert text.index(">Groups</h2>") < text.index("All 4 messages")
    assert reverse("message_group", args=[broker.slug, group.pk]) in text
    assert 'data-label="Parked" class="number">1<' in text
    assert ">none<" in text
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="x-death", least_role=Role.ADMIN
    )
    assert "invoices" not in look()
    assert MessageGroup.objects.count() == 1


def test_rules_hide_what_a_look_shows(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    known(broker, a_queue("dead"))
    looked(monkeypatch)
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="card", least_role=Role.ADMIN)
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="token", least_role=Role.ADMIN)
    text = look()
    assert "4111" not in text
    assert "s3cret" not in text
    assert "Ada" in text
    assert text.count("redacted") >= 2
    assert "s3cret" in look(Role.ADMIN)


def test_a_hidden_history_is_not_told_by_a_look(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(broker, a_queue("dead"))
    seen = peek.number_messages([a_message()])
    monkeypatch.setattr(
        peek, "peek_queue", lambda *_, **__: peek.Peek(seen, False, peek.Permission(True, ()))
    )
    assert "rejected" in look()
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="X-Death", least_role=Role.ADMIN
    )
    assert "rejected" not in look()


def test_a_replay_out_of_a_queue_where_passes_cost_deliveries_is_refused(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(broker, a_queue("dead", type="quorum"))
    looked(monkeypatch, Budget(20, 1))
    assert "Park the messages first" in look()
    DeadLetterQueue.objects.create(broker=broker, queue="dead", is_confirmed=True, decided_at=NOON)
    prepare = reverse("replay_prepare", args=["test-broker"])
    values = {"name": "dead", "message": f"{'a' * 32}.{'0' * 8}.1"}
    answer = signed_in(Role.OPERATOR).post(prepare, values, follow=True)
    assert "harms the others in this queue" in text_of(answer)
    assert (ReplayBatch.objects.count(), Parking.objects.count()) == (0, 0)
