"""Why what a remedy replaces cannot be deleted now."""

from __future__ import annotations

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.findings.remedy import Remedy
from topology.operations.apply_remedy import explain_in_use
from topology.snapshot import QueueNumbers

UNUSED = QueueNumbers(messages=0, consumers=0)
HOLDING = QueueNumbers(messages=2, consumers=0)


def explain(one: Exchange | Queue, *others: BrokerObject, **numbers: QueueNumbers) -> str:
    snapshot = a_snapshot(Definitions.of([one, *others]), {one.name: UNUSED, **numbers})
    return " ".join(explain_in_use(Remedy(Definitions(), (), "", (one,)), snapshot))


def test_unknown_numbers_are_not_zero() -> None:
    queue = a_queue("q")
    assert explain(queue) == ""
    assert explain(queue, q=QueueNumbers()) == (
        "The number of messages of “q” is not known. Try again. "
        "The number of consumers of “q” is not known. Try again."
    )


def test_what_cannot_be_declared_again_is_not_deleted() -> None:
    assert "nobody else can declare it" in explain(a_queue("amq.gen-x"))
    assert "may hold messages that a delete destroys" in explain(Exchange("x", "x-delayed-message"))
    assert explain(Exchange("x", "topic")) == ""
    source = Exchange("in", auto_delete=True)
    assert "the auto-delete exchange “in”" in explain(a_queue("q"), source, Binding("in", "q", ""))


TO_EXCHANGE = (a_queue("wait", ttl=5, dlx="in"), Exchange("in"))


@pytest.mark.parametrize(
    ("one", "others"),
    [
        (a_queue("q"), [a_queue("wait", ttl=5, dlx="", key="q")]),
        (a_queue("q"), [*TO_EXCHANGE, Binding("in", "q", "k")]),
        (Exchange("in"), [a_queue("wait", ttl=5, dlx="in")]),
        (Exchange("on"), [*TO_EXCHANGE, Binding("in", "on", "", destination_is_queue=False)]),
    ],
)
def test_what_expires_while_it_is_gone_would_be_dropped(
    one: Exchange | Queue, others: list[BrokerObject]
) -> None:
    assert explain(one, *others, wait=UNUSED) == ""
    held = explain(one, *others, wait=HOLDING)
    assert held.startswith(f"“wait” dead-letters to “{one.name}” and holds 2 messages.")
    assert "holds an unknown number of messages" in explain(one, *others)


def test_other_dead_letters_do_not_matter() -> None:
    wait = a_queue("wait", ttl=5, dlx="", key="other")
    assert explain(a_queue("q"), a_queue("other"), wait, wait=HOLDING) == ""
    safe = {
        "type": "quorum",
        "x_overflow": "reject-publish",
        "x_dead_letter_strategy": "at-least-once",
    }
    kept = a_queue("wait", ttl=5, dlx="", key="q", **safe)
    assert explain(a_queue("q"), kept, wait=HOLDING) == ""
