"""What holds for every walk, through vhosts of any structure."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.walks import MIDDLE, NEW, OLD, ms, of
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.routing.context import Consumer
from topology.routing.matching.index import Index
from topology.routing.walk import walk

published = (
    strategies.definitions(),
    st.sampled_from((*strategies.EXCHANGES, "")),
    strategies.keys | st.sampled_from(strategies.QUEUES),
)
players = st.dictionaries(
    st.sampled_from(strategies.QUEUES),
    st.builds(
        Consumer,
        st.sampled_from(["acks", "rejects", "requeues", "crashes"]),
        st.none() | st.integers(0, 2),
    ),
)
versions = st.sampled_from([OLD, MIDDLE, NEW])


@settings(deadline=None)
@given(*published, players, versions)
def test_times_only_grow_and_every_end_is_where_its_way_leads(
    found: Definitions,
    exchange: str,
    key: str,
    consumers: dict[str, Consumer],
    version: tuple[int, ...],
) -> None:
    walked = walk(found, exchange, key, consumers=consumers, version=version)
    for outcome in walked.outcomes:
        times = [hop.after for hop in outcome.hops]
        assert times == sorted(times)
        assert not times or outcome.after >= times[-1]
        assert outcome.queue == (outcome.hops[-1].queue if outcome.hops else "")
        assert outcome.latest is None or outcome.latest >= outcome.after
        for before, hop in zip(outcome.hops, outcome.hops[1:], strict=False):
            assert before.wait is not None
            assert hop.after == before.after + before.wait


@settings(deadline=None)
@given(*published, players, versions)
def test_an_index_answers_as_its_definitions_do_and_is_not_changed_by_it(
    found: Definitions,
    exchange: str,
    key: str,
    consumers: dict[str, Consumer],
    version: tuple[int, ...],
) -> None:
    index = Index(found)
    first = walk(index, exchange, key, consumers=consumers, version=version)
    assert first == walk(found, exchange, key, consumers=consumers, version=version)
    assert first == walk(index, exchange, key, consumers=consumers, version=version)


@settings(deadline=None)
@given(*published, players)
def test_what_nothing_leads_to_changes_no_way(
    found: Definitions, exchange: str, key: str, consumers: dict[str, Consumer]
) -> None:
    more = found | of(Exchange("aside"), Queue("far"), Binding("aside", "far", key))
    assert walk(found, exchange, key, consumers=consumers) == walk(
        more, exchange, key, consumers=consumers
    )


@given(*published)
def test_where_every_queue_is_consumed_all_arrive_at_once(
    found: Definitions, exchange: str, key: str
) -> None:
    walked = walk(found, exchange, key, consumed=frozenset(strategies.QUEUES))
    for outcome in walked.outcomes:
        assert outcome.after == ms(0)
        assert outcome.ending == ("delivered" if outcome.hops else "dropped")
