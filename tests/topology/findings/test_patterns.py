"""A managed topology that was applied with defaults has nothing above a note."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.findings.find import find
from topology.findings.hit import Severity
from topology.patterns.pattern import ParamsError
from topology.patterns.table import PATTERNS


def applied(kind: str) -> Definitions:
    """The example of a pattern with its work queues and what its routes declare."""
    pattern = PATTERNS[kind]
    params = pattern.EXAMPLE
    made = pattern.definitions(params)
    targets = list(pattern.targets(params)) or ["work"]
    for target in targets:
        for delay in pattern.delays(params) or [pattern.longest(params)]:
            with suppress(ParamsError):
                made |= pattern.route(params, delay, target).declares
    return made | Definitions.of(_beside(made, targets))


def _beside(made: Definitions, targets: list[str]) -> list[BrokerObject]:
    """What the topologies expect to be there: a fanout as well as any other exchange."""
    named = {q.dead_letter_exchange for q in made.queues if q.dead_letter_exchange}
    missing = [name for name in named if made.exchange(name) is None]
    return [
        *(Exchange(name, "fanout") for name in missing),
        *(Binding(name, targets[0], "") for name in missing),
        *(Queue(name) for name in targets if made.queue(name) is None),
    ]


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5", "4.3.6"])
@pytest.mark.parametrize("kind", PATTERNS)
def test_a_pattern_with_its_defaults_has_notes_alone(kind: str, version: str) -> None:
    found = find(a_snapshot(applied(kind), version=version))
    bad = [one.rule.id for one in found if one.severity > Severity.STYLE]
    assert bad == (["F30"] if (kind, version) == ("delayed_exchange", "4.3.6") else [])


def test_retries_that_a_ladder_parks_are_not_endless_and_those_of_a_pair_are() -> None:
    def titles(kind: str) -> list[str]:
        return [one.title for one in find(a_snapshot(applied(kind), version="4.3.6"))]

    assert "Retries without an end" not in titles("retry_ladder")
    assert "Retries without an end" in titles("retry_pair")
    # Its input exchange is a fanout, so its messages may have any key.
    assert "Retries without an end" in titles("retry_loop")


def test_a_loop_through_another_exchange_than_a_fanout_may_end_for_some_keys() -> None:
    made = Definitions.of(
        replace(obj, type="topic")
        if obj == Exchange("service_a_dead_letter_exchange", "fanout")
        else obj
        for obj in applied("retry_loop")
    )
    assert made != applied("retry_loop")
    titles = [one.title for one in find(a_snapshot(made, version="4.3.6"))]
    assert "Retries without an end" not in titles


@pytest.mark.parametrize("key", ["mail", None])
def test_a_loop_back_by_a_key_of_the_retry_queue_has_no_end_whatever_keys_come(
    key: str | None,
) -> None:
    """As kombu's users build it: a topic exchange before it, and back by the default exchange."""
    made = Definitions.of(
        [
            Exchange("mail", "topic"),
            Exchange("retry", "fanout"),
            a_queue("mail", dlx="retry"),
            a_queue("wait", ttl=1000, dlx="", **({"key": key} if key else {})),
            Binding("mail", "mail", "order.#"),
            Binding("retry", "wait", ""),
        ]
    )
    titles = [one.title for one in find(a_snapshot(made, version="4.3.6"))]
    assert ("Retries without an end" in titles) == (key is not None)
