"""The page that moves a queue with a shovel: a form, a progress, or the reason for neither."""

from __future__ import annotations

import pytest
from django.urls import reverse

from delayboard.dead_letters import shovel
from tests.site.page_setup import signed_in, text_of
from topology.models import Broker, Role

pytestmark = pytest.mark.django_db


def page(broker: Broker, role: Role = Role.OPERATOR) -> str:
    return text_of(signed_in(role).get(reverse("move_queue", args=[broker.slug]) + "?name=dead"))


def test_the_page_has_a_form_a_progress_or_a_reason(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Destination queue" not in page(broker)
    move: shovel.Move | None = None
    monkeypatch.setattr(shovel, "read_move", lambda broker, queue: move)
    assert "Destination queue" in page(broker)
    move = shovel.Move("running", "<b>work", 1200, "")
    text = page(broker)
    assert "Destination queue" not in text
    assert "&lt;b&gt;work" in text
    assert "1\u202f200" in text

    def refuse(broker: Broker, queue: str) -> None:
        raise shovel.MoveRefused(shovel.NO_PLUGIN)

    monkeypatch.setattr(shovel, "read_move", refuse)
    assert "has no shovel plugin" in page(broker)


def test_a_viewer_moves_nothing_and_production_asks_first(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        shovel, "start_move", lambda user, broker, queue, target: started.append(target)
    )
    monkeypatch.setattr(shovel, "read_move", lambda broker, queue: None)
    start = reverse("move_queue_start", args=[broker.slug])
    names = {"name": "dead", "target": "work"}
    assert signed_in(Role.VIEWER).post(start, names).status_code == 403
    Broker.objects.update(is_production=True, environment="live")
    asked = text_of(signed_in(Role.OPERATOR).post(start, names))
    assert "All messages of the queue dead are moved to the queue work." in asked
    assert not started
    confirmed = {**names, "confirm_broker": broker.name}
    signed_in(Role.OPERATOR).post(start, confirmed)
    assert started == ["work"]
