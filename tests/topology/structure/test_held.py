"""Delays that dramatiq's workers keep: known by the queues beside it, and read from the body."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue
from topology.definitions import Definitions, Queue
from topology.structure.copies import Copy, Reading
from topology.structure.find_chains import find_chains, make_chain
from topology.structure.reading import Reader

NOW_MS = 1_795_831_155_235
ORDERS = (
    a_queue("orders", dlx="", key="orders.XQ"),
    a_queue("orders.DQ", dlx="", key="orders.XQ"),
    a_queue("orders.XQ", ttl=604_800_000),
)


def read(key: str, body: bytes, exchange: str = "") -> Reading | None:
    (chain,) = find_chains(Definitions.of(ORDERS), frozenset({"orders", "orders.DQ"}))
    stored = make_chain(chain.name, chain.queues, chain.definitions)
    assert stored == chain
    return Reader(stored).read(Copy(exchange, key, {}, None, NOW_MS, body))


def a_body(**options: Any) -> bytes:
    return json.dumps({"message_id": "m1", "options": options, "args": []}).encode()


def test_a_delayed_message_is_due_when_its_body_says() -> None:
    found = read("orders.DQ", a_body(eta=NOW_MS + 60_000))
    assert found == Reading(
        "entry", "orders", "orders.DQ", timedelta(minutes=1), 0, message_id="m1"
    )
    late = read("orders.DQ", a_body(eta=NOW_MS - 5, retries=3))
    assert late is not None
    assert (late.delay, late.attempt) == (timedelta(0), 3)


def test_a_message_in_the_work_queue_left_the_round_that_its_body_counts() -> None:
    found = read("orders", a_body(retries=2))
    assert found == Reading("exit", "orders", "orders", timedelta(0), 2, message_id="m1")


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[1]", b'{"options": 1}', b"[" * 100_000, a_body(eta=NOW_MS + 10**12)],
)
def test_a_body_of_something_else_is_not_read(body: bytes) -> None:
    assert read("orders.DQ", body) is None


@pytest.mark.parametrize("eta", [None, True, "soon", -1, float("inf"), float("nan"), 10**30])
def test_a_time_that_is_none_is_due_at_once(eta: Any) -> None:
    found = read("orders.DQ", a_body(eta=eta))
    assert found is not None
    assert found.delay == timedelta(0)


def test_what_passes_another_exchange_or_queue_is_none_of_it() -> None:
    assert read("orders.DQ", a_body(eta=NOW_MS), exchange="amq.topic") is None
    assert read("orders.XQ", a_body(eta=NOW_MS)) is None


@pytest.mark.parametrize("other", [ORDERS[1:], (*ORDERS[1:], a_queue("orders"))])
def test_without_its_neighbour_a_queue_is_none_of_dramatiq(other: tuple[Queue, ...]) -> None:
    assert find_chains(Definitions.of(other)) == []
