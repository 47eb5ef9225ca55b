"""Verdicts of queues that cannot hold all that goes into them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.replay.batch import change_state
from delayboard.dead_letters.replay.check import redirect_group
from delayboard.dead_letters.replay.draft import change_draft, create_draft, freeze_selection
from delayboard.dead_letters.replay.draft.edit_message import edit_message, undo_edit
from tests.delayboard.builders import a_death, a_message, deaths_header, parked, shop
from tests.delayboard.preparing import (
    FEW,
    PLAIN,
    bounded,
    group_of,
    know,
    routes_of,
    some,
    work_off,
)
from tests.topology.builders import a_queue
from topology.definitions import Binding, Exchange
from topology.models import Broker
from topology.snapshot import QueueNumbers

pytestmark = [pytest.mark.usefixtures("seen"), pytest.mark.both_databases]


@pytest.mark.parametrize(
    ("has", "arguments", "ending", "said"),
    [
        (
            0,
            {"x_max_length": 5},
            "lost",
            "has 0: 7 of these 12 would be dropped from the front of the queue",
        ),
        (3, {"x_max_length": 5}, "lost", "3 that are in it and 7 of these 12 would be dropped"),
        (
            9,
            {"x_max_length": 20},
            "lost",
            "has 9: 1 that is in it would be dropped from the front of the queue",
        ),
        (0, {"x_max_length": 5, "dlx": "", "key": "other"}, "full", "dead-lettered into other"),
        (0, {"x_max_length": 5, "dlx": "", "key": "dead"}, "loops", "dead-lettered into dead"),
        (0, {"x_max_length": 5, "dlx": "gone"}, "lost", "dropped from the front of the queue"),
        (
            0,
            {"x_max_length": 5, "x_overflow": "reject-publish"},
            "full",
            "7 of these 12 would be refused and stay where they are",
        ),
        (None, {"x_max_length": 50}, "uncertain", "how many it has is not known"),
        (
            0,
            {"x_max_length_bytes": 9},
            "lost",
            "these 12 have 14 bytes: some would be dropped from the front",
        ),
        (1, {"x_max_length_bytes": 900}, "uncertain", "how many bytes it would have is not known"),
        (8, {"x_max_length": 20}, "delivered", ""),
        (0, {"x_max_length_bytes": 14}, "delivered", ""),
        (99, {"x_max_length": 5, "type": "stream"}, "delivered", ""),
    ],
)
@pytest.mark.parametrize("by_worker", [False, True])
def test_what_a_full_queue_would_push_out_is_told(
    user: User,
    broker: Broker,
    has: int | None,
    arguments: dict[str, Any],
    ending: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    by_worker: bool,
) -> None:
    bounded(broker, has, **arguments)
    keys = some(broker, 12)
    if by_worker:
        monkeypatch.setattr(freeze_selection, "AT_ONCE", 2)
    batch = create_draft.draft_messages(user, broker, keys, FEW)
    if by_worker:
        work_off(batch)
    (route,) = batch.routes.all()
    assert said in route.verdict
    assert (route.ending, route.is_good) == (ending, ending == "delivered")
    assert routes_of(batch) == {("", "few", ending): 12}


def test_items_of_several_routes_fill_a_queue_together(user: User, broker: Broker) -> None:
    fan = Exchange("fan", "fanout")
    few = a_queue("few", x_max_length=5)
    numbers = {"few": QueueNumbers(messages=0, ready=0)}
    know(broker, shop(fan, few, Binding("fan", "few", "")), numbers=numbers)
    keys = some(broker, 4)
    messages = [
        a_message(headers=deaths_header(a_death("few", exchange="fan", routing_keys=(key,))))
        for key in "aab"
    ]
    keys += [row.pk for row in parked(broker, *messages)]
    batch = create_draft.draft_messages(user, broker, keys, PLAIN)
    assert all(route.is_good for route in batch.routes.all())
    for key in keys[:4]:
        redirect_group.redirect_group(user, group_of(key), "", "few")
    batch = create_draft.draft_messages(user, broker, keys, PLAIN)
    assert change_state.count_bad_verdicts(batch) == {"lost": 7}
    assert all("2 of these 7" in route.verdict for route in batch.routes.all())


def test_an_edit_and_a_change_keep_what_is_told_of_a_full_queue(user: User, broker: Broker) -> None:
    bounded(broker, 0, x_max_length=5)
    batch = create_draft.draft_messages(user, broker, some(broker, 6), FEW)
    item = batch.items.select_related("batch__broker", "parked_message").get(position=2)
    edit_message(user, item, body=b"other")
    assert change_state.count_bad_verdicts(batch) == {"lost": 6}
    undo_edit(user, item)
    assert change_state.count_bad_verdicts(batch) == {"lost": 6}
    bounded(broker, 0, x_max_length=6)
    change_draft.change_options(user, batch, FEW)
    assert routes_of(batch) == {("", "few", "delivered"): 6}
