"""Verdicts of queues with a maximum length."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.replay import make_draft
from tests.delayboard.builders import shop
from tests.delayboard.preparing import (
    FEW,
    bounded,
    know,
    routes_of,
    some,
)
from tests.topology.builders import a_queue
from topology.models import Broker
from topology.snapshot import QueueNumbers

pytestmark = [pytest.mark.usefixtures("seen"), pytest.mark.both_databases]


@pytest.mark.parametrize(
    ("has", "arguments", "ending", "said"),
    [
        (
            5,
            {"x_max_length": 5},
            "full",
            "“few” has a maximum length of 5 messages, and 5 messages now.",
        ),
        (9, {"x_max_length": 5, "x_overflow": "reject-publish"}, "full", "and 9 messages now."),
        (
            4,
            {"x_max_length": 5},
            "delivered",
            "has a maximum length of 5 messages, and 4 messages now.",
        ),
        (None, {"x_max_length": 5}, "delivered", "Its number of messages is unknown."),
        (
            1,
            {"x_max_length": 1000, "x_max_length_bytes": 1},
            "delivered",
            "has a maximum length of 1\u202f000 messages or 1 byte, and 1 message now.",
        ),
        (
            99,
            {"x_max_length": 5, "type": "stream"},
            "delivered",
            "The message arrives in few at once.",
        ),
    ],
)
def test_a_verdict_says_how_full_a_queue_is(
    user: User, broker: Broker, has: int | None, arguments: dict[str, Any], ending: str, said: str
) -> None:
    bounded(broker, has, **arguments)
    batch = make_draft.draft_messages(user, broker, some(broker, 2), FEW)
    (route,) = batch.routes.all()
    assert route.verdict.endswith(said)
    assert (route.ending, route.is_good) == (ending, ending == "delivered")
    assert routes_of(batch) == {("", "few", ending): 2}


def test_a_queue_with_consumers_is_not_full(user: User, broker: Broker) -> None:
    numbers = {"few": QueueNumbers(messages=5, ready=5, consumers=1)}
    know(broker, shop(a_queue("few", x_max_length=5)), numbers=numbers)
    batch = make_draft.draft_messages(user, broker, some(broker, 1), FEW)
    assert routes_of(batch) == {("", "few", "delivered"): 1}


def test_a_full_queue_keeps_another_failing_verdict(user: User, broker: Broker) -> None:
    bounded(broker, 5, x_max_length=5, ttl=1000)
    batch = make_draft.draft_messages(user, broker, some(broker, 1), FEW)
    (route,) = batch.routes.all()
    assert route.ending == "lost"
    assert route.verdict.endswith("and 5 messages now.")
