"""Editing one item of a draft: types and bytes are kept, the message stays as it was."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import given
from hypothesis import strategies as st

from analytics.retention.rules import clean
from delayboard.dead_letters.replay import batch_state, make_draft
from delayboard.dead_letters.replay import edit_message as edit_module
from delayboard.dead_letters.replay.edit_headers import EditError, Typed, edit_headers, read_headers
from delayboard.dead_letters.replay.edit_message import (
    HIDDEN,
    edit_message,
    read_shown_headers,
    undo_edit,
)
from delayboard.dead_letters.replay.options import Options
from delayboard.dead_letters.replay.verdicts import BrokerState, poll_broker
from delayboard.models import Body, ReplayBatch, ReplayEdit, ReplayItem, TargetMode
from delayboard.retention.parked_rows import PARKED
from tests.delayboard.builders import a_death, a_message, deaths_header, parked, shop
from tests.delayboard.preparing import know, known, routes_of
from tests.topology import strategies
from tests.topology.amqp_entries import table_entries
from tests.topology.builders import NOON
from topology import redaction
from topology.broker.properties.read import build_properties, read_properties
from topology.definitions import Arguments, Binding, Exchange
from topology.message import REPLAYS_HEADER
from topology.models import AuditEntry, Broker, RedactionKind, RedactionRule

AT = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
HEADERS: dict[str, Any] = {
    "name": "Zoë",
    "count": 7,
    "big": 2**40,
    "ratio": 1.5,
    "on": True,
    "price": Decimal("9.95"),
    "at": AT,
    "raw": b"\x00\xff",
    "none": None,
    "table": {"a": [1, "b"]},
    "list": [1, 2],
    "odd": {"at": AT},
}


def values(raw: bytes) -> dict[str, Any]:
    return dict(read_properties(raw).headers)


def tags(raw: bytes) -> dict[str, bytes]:
    """The AMQP tag of each header."""
    start = 6 if raw[0] & 0x80 == 0 else 0
    assert start
    return {
        name.decode(): data[1 + len(name) : 2 + len(name)]
        for name, _, data in table_entries(raw[start:])
    }


RAW = build_properties(HEADERS).raw


@pytest.mark.parametrize(
    ("name", "text", "value", "tag"),
    [
        ("name", "Bob", "Bob", b"S"),
        ("count", "-3", -3, b"I"),
        ("big", str(2**41), 2**41, b"l"),
        ("ratio", "2", 2.0, b"d"),
        ("on", "false", False, b"t"),
        ("price", "10.50", Decimal("10.50"), b"D"),
        ("at", "2026-11-22 04:00:00 UTC", AT.replace(hour=4), b"T"),
        ("at", "1795316400", AT, b"T"),
        ("raw", "0a ff", b"\x0a\xff", b"x"),
        ("table", '{"a": [2]}', {"a": [2]}, b"F"),
        ("list", "[]", [], b"A"),
    ],
)
def test_a_changed_header_keeps_its_type(name: str, text: str, value: Any, tag: bytes) -> None:
    raw = edit_headers(RAW, {name: Typed("", text)})
    assert values(raw) == {**HEADERS, name: value}
    assert tags(raw) == {**tags(RAW), name: tag}


@pytest.mark.parametrize(
    ("tag", "form", "text", "encoded"),
    [
        (b"b", ">b", "-128", b"I"),
        (b"B", ">B", "256", b"I"),
        (b"u", ">H", "-2147483648", b"I"),
        (b"i", ">I", "4294967295", b"l"),
        (b"l", ">q", "5", b"I"),
        (b"f", ">f", "1e300", b"d"),
    ],
)
def test_an_edited_number_is_encoded_anew_and_the_others_keep_their_bytes(
    tag: bytes, form: str, text: str, encoded: bytes
) -> None:
    first, other = (name + tag + struct.pack(form, 1) for name in (b"\x01n", b"\x01m"))
    raw = b"\x20\x00" + struct.pack(">I", len(first + other)) + first + other
    found = edit_headers(raw, {"n": Typed("", text)})
    assert tags(found) == {"n": encoded, "m": tag}
    assert values(found) == {"n": float(text) if tag == b"f" else int(text), "m": 1}
    assert other in found


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("count", Typed("", "seven")),
        ("count", Typed("", "1" * 40)),
        ("count", Typed("", str(2**63))),
        ("at", Typed("", "9" * 20)),
        ("ratio", Typed("", "much")),
        ("ratio", Typed("", "NaN")),
        ("ratio", Typed("", "-inf")),
        ("ratio", Typed("", "1e999")),
        ("new", Typed("float", "Infinity")),
        ("table", Typed("", '{"a": [NaN]}')),
        ("list", Typed("", "[1e999]")),
        ("on", Typed("", "perhaps")),
        ("price", Typed("", "9,95")),
        ("price", Typed("", "1e99")),
        ("price", Typed("", "NaN")),
        ("at", Typed("", "yesterday")),
        ("at", Typed("", "1960-01-01")),
        ("at", Typed("", "9999-12-31T23:59:59-23:59")),
        ("raw", Typed("", "xyz")),
        ("none", Typed("", "something")),
        ("table", Typed("", "[1]")),
        ("list", Typed("", "{")),
        ("list", Typed("", "[" * 100_000)),
        ("odd", Typed("", "{}")),
        ("name", Typed("colour", "blue")),
        ("", Typed("text", "x")),
        ("n" * 256, Typed("text", "x")),
        ("new", Typed("", "x")),
        ("new", Typed("text", "\ud800")),
        ("new", Typed("text", "x" * 200_000)),
        ("x-death", Typed("text", "x")),
        ("CC", Typed("list", "[]")),
        ("x-opt-a", Typed("text", "x")),
        (REPLAYS_HEADER, Typed("integer", "0")),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(name: str, typed: Typed) -> None:
    with pytest.raises(EditError) as refused:
        edit_headers(RAW, {name: typed})
    (problem,) = refused.value.problems.values()
    assert problem.endswith(".")


def test_headers_are_added_retyped_and_dropped() -> None:
    raw = edit_headers(
        RAW, {"new": Typed("integer", "5"), "count": Typed("text", "7")}, ["odd", "gone"]
    )
    left = {name: value for name, value in HEADERS.items() if name != "odd"}
    assert values(raw) == {**left, "count": "7", "new": 5}
    assert edit_headers(raw, {}, list(values(raw))) == b"\x00\x00"
    assert values(edit_headers(b"\x00\x00", {"new": Typed("text", "5")})) == {"new": "5"}


@given(strategies.raw_properties())
def test_what_is_typed_as_it_is_shown_changes_not_one_byte(raw: bytes) -> None:
    try:
        shown = read_headers(raw)
    except EditError:
        return
    names = [header.name for header in shown]
    typed = {h.name: Typed(h.type, h.text) for h in shown if not h.lock and names.count(h.name) < 2}
    assert edit_headers(raw, typed) == raw


@given(strategies.raw_properties(), st.text(max_size=5))
def test_an_edit_touches_nothing_but_the_header(raw: bytes, text: str) -> None:
    before = read_properties(raw)
    try:
        after = read_properties(edit_headers(raw, {"zz": Typed("text", text)}))
    except EditError:
        return
    # By their texts, for NaN is not equal to itself.
    wanted = {**before.headers, "zz": text}
    assert {name: repr(value) for name, value in after.headers.items()} == {
        name: repr(value) for name, value in wanted.items()
    }
    assert after.stated() == before.stated()


@pytest.fixture(autouse=True)
def seen(request: pytest.FixtureRequest) -> Iterator[None]:
    if "broker" not in request.fixturenames:
        yield
        return
    with known(request.getfixturevalue("broker")):
        yield


def drafted(user: User, broker: Broker, number: int = 2, **headers: Any) -> ReplayBatch:
    messages = [
        a_message(str(place).encode(), {**deaths_header(a_death()), **headers})
        for place in range(number)
    ]
    keys = [row.pk for row in parked(broker, *messages)]
    return make_draft.draft_messages(user, broker, keys, Options())


def item_of(batch: ReplayBatch, position: int = 1) -> ReplayItem:
    return batch.items.select_related("batch__broker", "parked_message").get(position=position)


def test_the_parked_message_stays_and_the_edit_is_sent(user: User, broker: Broker) -> None:
    batch = drafted(user, broker, tenant=7)
    item = item_of(batch)
    assert item.parked_message is not None
    before = bytes(item.parked_message.properties)
    made = edit_message(user, item, set_headers={"tenant": Typed("", "8")}, body=b"other")
    assert made is not None
    assert (bytes(made.body.data), values(bytes(made.properties))["tenant"]) == (b"other", 8)
    item = item_of(batch)
    assert item.size == 5
    assert item.parked_message is not None
    assert (bytes(item.parked_message.properties), item.parked_message.message.body) == (
        before,
        b"0",
    )
    again = edit_message(user, item, set_headers={"more": Typed("text", "x")})
    assert again is not None
    assert bytes(again.body.data) == b"other"
    assert values(bytes(again.properties))["tenant"] == 8
    entry = AuditEntry.objects.filter(action="replay message edited").latest("pk")
    assert entry.details["headers"] == ["more"]
    assert routes_of(batch) == {("orders", "orders", "delivered"): 2}


def test_an_edit_is_undone_by_a_press_or_by_typing_it_back(user: User, broker: Broker) -> None:
    batch = drafted(user, broker, tenant=7)
    edit_message(user, item_of(batch), set_headers={"tenant": Typed("", "8")}, body=b"other")
    assert (
        edit_message(user, item_of(batch), set_headers={"tenant": Typed("", "7")}, body=b"0")
        is None
    )
    assert not ReplayEdit.objects.exists()
    edit_message(user, item_of(batch), body=b"other")
    undo_edit(user, item_of(batch))
    undo_edit(user, item_of(batch))
    assert not ReplayEdit.objects.exists()
    assert item_of(batch).size == 1
    assert AuditEntry.objects.filter(action="replay message no longer edited").count() == 2


def test_an_edited_item_is_judged_anew_alone(user: User, broker: Broker) -> None:
    sorter = shop(
        Exchange("sorter", "headers"),
        Binding("sorter", "orders", "", arguments=Arguments({"kind": "pdf"})),
    )
    know(broker, sorter)
    messages = [a_message(str(n).encode(), {"kind": "doc"}) for n in range(3)]
    keys = [row.pk for row in parked(broker, *messages)]
    options = Options(mode=TargetMode.TYPED, exchange="sorter", key="")
    batch = make_draft.draft_messages(user, broker, keys, options)
    assert routes_of(batch) == {("sorter", "", "unroutable"): 3}
    edit_message(user, item_of(batch, 2), set_headers={"kind": Typed("", "pdf")})
    assert routes_of(batch) == {("sorter", "", "unroutable"): 2, ("sorter", "", "delivered"): 1}
    make_draft.change_options(user, batch, options)
    assert routes_of(batch) == {("sorter", "", "unroutable"): 2, ("sorter", "", "delivered"): 1}
    undo_edit(user, item_of(batch, 2))
    assert routes_of(batch) == {("sorter", "", "unroutable"): 3}


def test_nothing_is_edited_that_was_started(user: User, broker: Broker) -> None:
    batch = drafted(user, broker)
    item = item_of(batch)
    batch_state.start(user, batch, despite_verdict=False)
    with pytest.raises(EditError, match="Only a draft"):
        edit_message(user, item, body=b"other")
    assert not ReplayEdit.objects.exists()
    assert not Body.objects.filter(size=5).exists()


def test_an_edit_judged_by_options_that_changed_meanwhile_is_refused(
    user: User, broker: Broker
) -> None:
    batch = drafted(user, broker)
    item = item_of(batch)
    make_draft.change_options(user, batch, Options(mode=TargetMode.FIRST_QUEUE))
    with pytest.raises(EditError, match="try again"):
        edit_message(user, item, body=b"other")
    assert not ReplayEdit.objects.exists()


@pytest.mark.parametrize("change", [partial(edit_message, body=b"new"), undo_edit])
def test_an_edit_during_the_check_of_another_is_not_lost(
    user: User,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[User, ReplayItem], object],
) -> None:
    batch = drafted(user, broker)
    edit_message(user, item_of(batch), set_headers={"first": Typed("text", "1")})

    def edit_meanwhile(polled: Broker) -> BrokerState:
        monkeypatch.undo()
        edit_message(user, item_of(batch), set_headers={"other": Typed("text", "x")})
        return poll_broker(polled)

    monkeypatch.setattr(edit_module, "poll_broker", edit_meanwhile)
    with pytest.raises(EditError, match="edited meanwhile"):
        change(user, item_of(batch))
    edit = ReplayEdit.objects.get()
    assert bytes(edit.body.data) == b"0"
    headers = values(bytes(edit.properties))
    assert (headers["first"], headers["other"]) == ("1", "x")


def test_what_is_hidden_from_somebody_is_not_theirs_to_change(user: User, broker: Broker) -> None:
    batch = drafted(user, broker, tenant="acme", nested={"secret": 1, "open": 2})
    RedactionRule.objects.create(broker=broker, kind=RedactionKind.HEADER, pattern="secret")
    RedactionRule.objects.create(broker=broker, kind=RedactionKind.HEADER, pattern="ten*")
    RedactionRule.objects.create(broker=broker, kind=RedactionKind.BODY, pattern="card")
    for change in (
        {"set_headers": {"tenant": Typed("", "x")}},
        {"set_headers": {"nested": Typed("", "{}")}},
        {"drop_headers": ["tenant"]},
        {"body": b"{}"},
    ):
        with pytest.raises(EditError, match="hidden from you"):
            edit_message(user, item_of(batch), **change)
    hidden = redaction.rules_for(user, broker)
    locked = {header.name: header.lock for header in read_shown_headers(item_of(batch), hidden)}
    assert locked["tenant"] == locked["nested"] == HIDDEN
    texts = [header.text for header in read_shown_headers(item_of(batch), hidden)]
    assert not any("acme" in text or "secret" in text for text in texts)


def test_the_body_of_an_edit_is_kept_as_long_as_the_edit(user: User, broker: Broker) -> None:
    batch = drafted(user, broker)
    edit_message(user, item_of(batch), body=b"other")
    edit_message(user, item_of(batch, 2), body=b"an older one")
    edit_message(user, item_of(batch, 2), body=b"a newer one")
    clean(PARKED, NOON)
    sizes = set(Body.objects.values_list("size", flat=True))
    assert sizes == {1, len(b"other"), len(b"a newer one")}
