"""What leaves in a replay against what was parked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delayboard.dead_letters.replay.edit_headers import Typed
from delayboard.dead_letters.replay.edit_message import (
    MOST_LINES,
    SentDiff,
    diff_first,
    edit_message,
)
from delayboard.dead_letters.replay.make_draft import draft_messages
from delayboard.dead_letters.replay.options import Options
from tests.delayboard.builders import SHOP, a_death, a_message, deaths_header, parked
from tests.site.page_setup import know
from tests.topology.clients.test_trace import PARENT
from topology.models import Broker
from topology.redaction import NOTHING, Redaction

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def seen(broker: Broker) -> None:
    know(broker, *SHOP)


def diff(
    broker: Broker,
    body: bytes = b"{}",
    rules: Redaction = NOTHING,
    edited: bytes | None = None,
    options: Options | None = None,
    **headers: Any,
) -> SentDiff:
    (row,) = parked(broker, a_message(body, deaths_header(a_death()) | headers))
    batch = draft_messages(None, broker, [row.pk], options or Options())
    if edited is not None:
        edit_message(
            None, batch.items.get(), set_headers={"tenant": Typed("text", "7")}, body=edited
        )
    made = diff_first(batch, rules, hides_targets=False)
    assert made is not None
    return made


def lines(made: SentDiff) -> list[tuple[str, str]]:
    return [(line.mark, line.text) for line in made.body]


def test_a_replay_alone_changes_the_target_and_its_own_headers(broker: Broker) -> None:
    # Of the W3C: what a replay leads to belongs to the trace of the message.
    made = diff(broker, tenant="42", traceparent=PARENT, tracestate="vendor=1")
    changed = {change.part: (change.before, change.after) for change in made.changes}
    assert changed.pop("exchange")[1] == "orders"
    assert changed.pop("routing key")[1] == "orders"
    assert changed == {
        "header delayboard-replay-id": (None, "a new id"),
        "header delayboard-replays": (None, "1"),
    }
    assert made.stripped == ("x-death",)
    assert (made.body, made.note) == ((), "")


def test_counters_that_are_reset_and_edits_are_in_it(broker: Broker) -> None:
    celery: dict[str, Any] = {"task": "shop.place", "id": "a1", "retries": 3}
    changes = diff(broker, **celery).changes
    assert ("header retries", "3", "0") in changes
    kept = diff(broker, options=Options(keep_counters=True), **celery).changes
    assert not any(change.part == "header retries" for change in kept)
    made = diff(broker, b'{"n": 1, "m": 2}', edited=b'{"n": 1, "m": 3}', tenant="42")
    assert ("header tenant", "42", "7") in made.changes
    assert [mark for mark, _ in lines(made)] == ["same", "same", "gone", "new", "same"]
    assert ("new", '  "m": 3') in lines(made)


def test_a_body_without_lines_is_compared_by_its_size(broker: Broker) -> None:
    made = diff(broker, b"\x00\xff", edited=b"\x00")
    assert made.note.startswith("The body changes, from 2 to 1 bytes.")
    made = diff(broker, b"a\n" * MOST_LINES, edited=b"b\n" * MOST_LINES)
    assert made.note.startswith("The body changes")
    made = diff(broker, b'{"n":1}', edited=b'{"n": 1}')
    assert made.note == "Only the spaces of the body change."


def test_the_message_inside_an_envelope_is_what_leaves(broker: Broker) -> None:
    body: dict[str, Any] = {
        "RoutingKey": "orders",
        "Exchange": "orders",
        "Queue": "orders",
        "Exception": "E: x",
    }
    body |= {"Message": '{"n": 1}', "BasicProperties": {"MessageId": "a1"}}
    (row,) = parked(broker, a_message(json.dumps(body).encode()))
    batch = draft_messages(None, broker, [row.pk], Options(unwraps=True))
    made = diff_first(batch, NOTHING, hides_targets=False)
    assert made is not None
    assert ("property message_id", None, "a1") in made.changes
    assert ("new", '  "n": 1') in lines(made)


def test_what_a_rule_hides_is_said_to_change_and_not_shown(broker: Broker) -> None:
    rules = Redaction(("tenant",), ("card",))
    made = diff(broker, b'{"card": 1}', rules, b'{"card": 2}', tenant="42")
    assert ("header tenant", "redacted", "redacted") in made.changes
    assert made.note == "A redaction rule hides the change of the body."
    assert made.body == ()
    (row,) = parked(broker, a_message(b"{}", deaths_header(a_death())))
    batch = draft_messages(None, broker, [row.pk], Options())
    hidden = diff_first(batch, rules, hides_targets=True)
    assert hidden is not None
    assert not any(change.part in ("exchange", "routing key") for change in hidden.changes)


def test_without_a_target_nothing_is_said_of_addresses(broker: Broker) -> None:
    (row,) = parked(broker, a_message(b"{}", {"tenant": 7}))
    batch = draft_messages(None, broker, [row.pk], Options())
    made = diff_first(batch, NOTHING, hides_targets=False)
    assert made is not None
    assert {change.part[:17] for change in made.changes} == {"header delayboard"}
