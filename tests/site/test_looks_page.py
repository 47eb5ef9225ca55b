from __future__ import annotations

from dataclasses import replace

import pytest
from django.urls import reverse

from delayboard.dead_letters import browse
from delayboard.dead_letters.look_budget import Budget
from delayboard.models import LookCount, MaskKind, MaskRule, ReplayBatch
from tests.delayboard.builders import a_message
from tests.site.desk import know, signed_in, text_of
from tests.topology.builders import NOON, a_queue
from topology import latest
from topology.definitions import Queue
from topology.models import Broker, Role

pytestmark = pytest.mark.django_db

ADDRESS = "dead_letter_queue"


def known(broker: Broker, queue: Queue, version: str = "4.0.5") -> None:
    know(broker, queue)
    kept = latest._latest[broker.pk]
    assert kept.snapshot is not None
    snapshot = replace(kept.snapshot, version=version, numbers={})
    latest._latest[broker.pk] = replace(kept, snapshot=snapshot)


def page(role: Role = Role.OPERATOR, **asked: str) -> str:
    address = reverse(ADDRESS, args=["test-broker"])
    return text_of(signed_in(role).get(address, {"name": "dead"} | asked))


def test_what_a_look_costs_is_told_before_it(broker: Broker) -> None:
    known(broker, a_queue("dead", type="quorum"))
    LookCount.objects.create(broker=broker, queue="dead", looks=8, last_at=NOON)
    text = page()
    assert "12 of 20 deliveries are left to the messages at the head: a look costs one" in text
    assert '<button class="primary">Look</button>' in text
    assert "redelivered mark" in text
    assert "There they can be read as often as one likes, which costs them nothing." in text


@pytest.mark.parametrize(
    ("version", "arguments", "said"),
    [
        ("4.0.5", {"x_delivery_limit": 3}, "The last 3 are not spent on looks."),
        ("4.0.5", {"x_delivery_limit": -1}, "out of their order"),
        ("4.3.6", {"x_delayed_retry_type": "all"}, "out of sight"),
    ],
)
def test_where_a_look_would_harm_parking_is_offered_with_the_reason(
    broker: Broker, version: str, arguments: dict[str, object], said: str
) -> None:
    known(broker, a_queue("dead", type="quorum", **arguments), version)
    text = page()
    assert said in text
    assert "<button disabled" in text
    assert "There they can be read as often as one likes, which costs them nothing." in text
    refused = page(look="1")
    assert "It could not be looked into." in refused
    assert said in refused


def looked(monkeypatch: pytest.MonkeyPatch, budget: Budget | None = None) -> None:
    message = a_message(b'{"card": 4111, "name": "Ada"}', headers={"token": "s3cret"})
    allowed = browse.Permission(True, (), budget)
    seen = browse.Look(browse.number([message]), False, allowed)
    monkeypatch.setattr(browse, "look", lambda *_: seen)


def test_rules_hide_what_a_look_shows(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    known(broker, a_queue("dead"))
    looked(monkeypatch)
    MaskRule.objects.create(kind=MaskKind.BODY, pattern="card", least_role=Role.ADMIN)
    MaskRule.objects.create(kind=MaskKind.HEADER, pattern="token", least_role=Role.ADMIN)
    text = page(look="1")
    assert "4111" not in text
    assert "s3cret" not in text
    assert "Ada" in text
    assert text.count("hidden by a rule") >= 2
    assert "s3cret" in page(Role.ADMIN, look="1")


def test_a_hidden_history_is_not_told_by_a_look(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(broker, a_queue("dead"))
    seen = browse.number([a_message()])
    monkeypatch.setattr(
        browse, "look", lambda *_: browse.Look(seen, False, browse.Permission(True, ()))
    )
    assert "rejected" in page(look="1")
    MaskRule.objects.create(kind=MaskKind.HEADER, pattern="X-Death", least_role=Role.ADMIN)
    assert "rejected" not in page(look="1")


def test_a_replay_out_of_a_queue_where_passes_cost_deliveries_is_refused(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(broker, a_queue("dead", type="quorum"))
    looked(monkeypatch, Budget(20, 1))
    assert "park the messages first" in page(look="1")
    prepare = reverse("replay_prepare", args=["test-broker"])
    client = signed_in(Role.OPERATOR)
    answer = client.post(prepare, {"name": "dead", "message": "a.1"}, follow=True)
    assert "Nothing was prepared. On a quorum queue of this version" in text_of(answer)
    assert ReplayBatch.objects.count() == 0
