from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Arguments, Binding, Definitions, Exchange
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.provisioning.recognition import recognize
from topology.structure.copies import Copy, Reading


def ring(work: str, hold: str, **hold_arguments: Any) -> Definitions:
    """Two queues that die into each other, each through an exchange of its own."""
    return Definitions.of(
        [
            Exchange("w"),
            Exchange("h"),
            a_queue(work, dlx="h"),
            a_queue(hold, dlx="w", **hold_arguments),
            Binding("w", work, "k"),
            Binding("h", hold, "k"),
        ]
    )


@pytest.mark.parametrize("ttl", [0, -5, 10**30, True, "500", 2.5])
def test_a_hostile_ttl_is_no_retry_pair_and_no_error(ttl: Any) -> None:
    assert list(retry_pair.recognize(ring("a", "a-retry", ttl=ttl))) == []


def test_a_pair_whose_exchanges_have_other_names_is_a_chain() -> None:
    found = ring("a", "a-retry", ttl=5)
    assert list(retry_pair.recognize(found)) == []
    (one,) = recognize(a_snapshot(found)).found
    assert (one.use.kind, one.use.name, one.use.missing) == ("retry_chain", "a", ())


def test_a_pair_among_strangers_is_found_alone() -> None:
    params = retry_pair_params.Params("orders", timedelta(seconds=5))
    own = retry_pair.definitions(params)
    strangers = Definitions.of(
        [Exchange("x"), a_queue("other", dlx="orders"), Binding("orders", "other", "k")]
    )
    (use,) = retry_pair.recognize(own | strangers)
    assert use.params == params
    assert use.claims == {obj.identity for obj in own}


def died(queue: str, reason: str, **counts: int) -> dict[str, Any]:
    """Headers after a death: counts by queue of the ring, the last death by 4.x's headers."""
    return {
        "x-death": [
            {"queue": "o-retry", "reason": "expired", "count": counts.get("expired", 0) or 1},
            {"queue": "o", "reason": "rejected", "count": 1},
        ][: 2 if counts.get("expired") else 0]
        or [{"queue": queue, "reason": reason, "count": 1}],
        "x-last-death-queue": queue,
        "x-last-death-reason": reason,
    }


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("copy", "reading"),
    [
        (Copy("o", "k", {}), Reading("publish", "o", "o", timedelta(0), 0)),
        (Copy("o-retry", "k", {}), Reading("entry", "o", "o-retry", SECOND, 1)),
        (
            Copy("o-retry", "k", died("o", "rejected")),
            Reading("entry", "o", "o-retry", SECOND, 1, "o", "rejected"),
        ),
        (
            Copy("o", "k", died("o-retry", "expired", expired=1)),
            Reading("exit", "o", "o", SECOND, 1, "o-retry", "expired"),
        ),
        (
            Copy("o-retry", "k", died("o", "rejected", expired=2)),
            Reading("entry", "o", "o-retry", SECOND, 3, "o", "rejected"),
        ),
        (
            Copy("o", "k", died("o-retry", "expired", expired=3)),
            Reading("exit", "o", "o", SECOND, 3, "o-retry", "expired"),
        ),
        (
            Copy("o", "k", died("foreign", "expired")),
            Reading("publish", "o", "o", timedelta(0), 0, "foreign", "expired"),
        ),
        (Copy("other", "k", {}), None),
        (Copy("o", "other", {}), None),
    ],
)
def test_a_copy_in_a_retry_pair_is_read_by_where_it_passed_and_how_it_died(
    copy: Copy, reading: Reading | None
) -> None:
    assert retry_pair.read(retry_pair_params.Params("o", SECOND, "k"), copy) == reading


def test_the_arguments_of_a_retry_pair_are_those_of_the_article() -> None:
    found = retry_pair.definitions(retry_pair_params.Params("o"))
    work, hold = found.queue("o"), found.queue("o-retry")
    assert work is not None
    assert hold is not None
    assert work.arguments == Arguments(
        {"x-queue-type": "classic", "x-dead-letter-exchange": "o-retry"}
    )
    assert hold.arguments == Arguments(
        {"x-queue-type": "classic", "x-dead-letter-exchange": "o", "x-message-ttl": 300_000}
    )
    assert found.bindings == {Binding("o", "o", "o"), Binding("o-retry", "o-retry", "o")}


def test_the_example_for_consumers_names_the_queue() -> None:
    assert 'queue = "o"' in retry_pair.consumer_example(retry_pair_params.Params("o"))
