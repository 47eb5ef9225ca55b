"""What a quorum queue's retries say on a picture."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.graph.pictures import seen
from tests.topology.builders import a_queue
from topology.definitions import Definitions
from topology.graph.build import Retry, build, retry_of, sentence
from topology.graph.dot import arrange
from topology.graph.svg import draw
from topology.snapshot import QueueNumbers

RETRYING: dict[str, Any] = {
    "type": "quorum",
    "x_delayed_retry_type": "failed",
    "x_delayed_retry_min": 10_000,
    "x_delayed_retry_max": 60_000,
    "x_delivery_limit": 5,
}


@pytest.mark.parametrize(
    ("changes", "badge", "reported"),
    [
        ({}, "10s–1m, limit 5", "after 10s to 1m, at most 5 times"),
        ({"x_delivery_limit": 1}, "10s–1m, limit 1", "after 10s to 1m, once at most"),
        ({"x_delivery_limit": -1}, "10s–1m", "after 10s to 1m"),
        ({"x_delayed_retry_max": 10_000}, "10s, limit 5", "after 10s, at most 5 times"),
        ({"x_delayed_retry_max": "odd"}, "10s, limit 5", "after 10s, at most 5 times"),
    ],
)
def test_the_waits_and_the_limit_are_told(
    changes: dict[str, Any], badge: str, reported: str
) -> None:
    retry = retry_of(a_queue("work", **(RETRYING | changes)))
    assert retry is not None
    assert (retry.badge, retry.sentence) == (badge, f"returned messages are redelivered {reported}")


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "classic"},
        {"x_delayed_retry_type": "disabled"},
        {"x_delayed_retry_type": 7},
        {"x_delayed_retry_min": "soon"},
        {"x_delayed_retry_min": -10},
    ],
)
def test_a_queue_that_delivers_again_at_once_has_no_badge(changes: dict[str, Any]) -> None:
    assert retry_of(a_queue("work", **(RETRYING | changes))) is None


def test_the_badge_stands_in_the_box_and_in_the_sentence_of_its_node() -> None:
    queue = a_queue("work", **RETRYING)
    graph = build(seen(Definitions.of([queue]), {"work": QueueNumbers(3)}))
    (node,) = graph.nodes
    assert node.retry == Retry(timedelta(seconds=10), timedelta(minutes=1), 5)
    assert "returned messages are redelivered after 10s to 1m, at most 5 times" in sentence(node)
    layout = arrange(graph)
    assert ">10s–1m, limit 5</text>" in draw(layout, title="x")
    plain = arrange(build(seen(Definitions.of([a_queue("work")]), {"work": QueueNumbers(3)})))
    assert layout.boxes[0].width > plain.boxes[0].width
