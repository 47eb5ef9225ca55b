from __future__ import annotations

import pytest

from delayboard.dead_letters.replay.content import prepare_replay
from tests.topology import strategies
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import build_properties, read_properties
from topology.message import REPLAYS_HEADER, Properties, Route


def stamped_for_replay(properties: Properties) -> Properties:
    raw = prepare_replay(Route("", ""), properties, b"", "abc-1").properties.raw
    return read_properties(raw)


@pytest.mark.parametrize(
    ("said", "replays"), [(2, 2), (-1, 0), (2**40, 2**40), ("2", 0), (True, 0), ([2], 0), (None, 0)]
)
def test_how_often_it_was_replayed_is_what_its_header_says(said: object, replays: int) -> None:
    properties = build_properties({REPLAYS_HEADER: said, "a": 1})
    stamped = stamped_for_replay(properties)
    assert stamped.headers[REPLAYS_HEADER] == replays + 1


def test_a_count_that_cannot_be_read_is_none() -> None:
    inner = strategies.table([(REPLAYS_HEADER.encode(), b"A" + strategies.sized(b"?"))])
    stamped = stamped_for_replay(read_properties(b"\x20\x00" + strategies.sized(inner)))
    assert read_properties(stamped.raw).headers[REPLAYS_HEADER] == 1


def test_what_cannot_be_taken_apart_is_refused() -> None:
    with pytest.raises(FieldError):
        stamped_for_replay(read_properties(b"\x20\x00" + strategies.sized(b"\x01aQ")))
