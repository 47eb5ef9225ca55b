from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.replay.check.route_checker import count_replays
from delayboard.dead_letters.replay.send.publish_routes import stamp_for_replay
from tests.topology import strategies
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import build_properties, read_properties, strip_for_replay
from topology.message import REPLAY_HEADER, REPLAYS_HEADER

DUE = {"due": 5, "x-delay": 7}


@given(strategies.raw_properties(), st.sampled_from([{}, DUE]))
def test_what_is_stamped_undecoded_is_the_same(raw: bytes, headers: dict[str, int]) -> None:
    before = read_properties(raw)
    replays = count_replays(before.headers)
    published = {**headers, REPLAY_HEADER: "abc-1", REPLAYS_HEADER: replays + 1}
    expected = strip_for_replay(before, published)
    assert stamp_for_replay(raw, "abc-1", headers).raw == expected.raw


@pytest.mark.parametrize(
    ("said", "replays"), [(2, 2), (-1, 0), (2**40, 2**40), ("2", 0), (True, 0), ([2], 0), (None, 0)]
)
def test_how_often_it_was_replayed_is_what_its_header_says(said: object, replays: int) -> None:
    properties = build_properties({REPLAYS_HEADER: said, "a": 1})
    stamped = read_properties(stamp_for_replay(properties.raw, "abc-1", {}).raw)
    assert stamped.headers[REPLAYS_HEADER] == replays + 1


def test_a_count_that_cannot_be_read_is_none() -> None:
    inner = strategies.table([(REPLAYS_HEADER.encode(), b"A" + strategies.sized(b"?"))])
    stamped = stamp_for_replay(b"\x20\x00" + strategies.sized(inner), "abc-1", {})
    assert read_properties(stamped.raw).headers[REPLAYS_HEADER] == 1


def test_what_cannot_be_taken_apart_is_refused() -> None:
    with pytest.raises(FieldError):
        stamp_for_replay(b"\x20\x00" + strategies.sized(b"\x01aQ"), "abc-1", {})
