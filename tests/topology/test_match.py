from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.walks import topic_matches
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.routing.matching.index import Index, Trie, headers_match
from topology.routing.matching.match import Matched, keys_of, match


def routed(found: Definitions, exchange: str, *keys: str, **headers: Any) -> list[str]:
    return list(match(Index(found), exchange, keys, headers).queues)


def vhost(*objects: Exchange | Queue | Binding) -> Definitions:
    return Definitions.of([Queue("a"), Queue("b"), *objects])


def into(source: str, target: str, key: str = "", **arguments: Any) -> Binding:
    return Binding(source, target, key, target in ("a", "b"), Arguments(arguments))


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("*.b", "a.b", True),
        ("*", "", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("*.*", ".", True),
        ("a.*", "a.", True),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("", "", True),
        ("", "a", False),
        ("a.#", "a", True),
        ("#.b", "b", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a.x.y.c", False),
        ("a.#.*.b", "a.b", False),
        ("a.#.*.b", "a.x.b", True),
        ("#.#", "", True),
        ("#.a.#", "x.a", True),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("a.#.b", "a..b", True),
        ("A", "a", False),
        ("a.*b", "a.xb", False),
        ("é.*", "é.ü", True),
    ],
)
def test_a_star_is_one_word_and_a_hash_any_number(pattern: str, key: str, matches: bool) -> None:
    assert topic_matches(pattern, key) == matches


def test_the_longest_keys_are_matched_at_once() -> None:
    key = ".".join(["a"] * 128)
    assert len(key) == 255
    assert topic_matches(".".join(["#", "*"] * 60), key)
    assert not topic_matches(".".join(["#", "a"] * 60) + ".b", key)


def oracle(pattern: list[str], words: list[str]) -> bool:
    """Try every number of words for each part of the pattern."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(oracle(pattern[1:], words[eaten:]) for eaten in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and oracle(pattern[1:], words[1:])


@given(st.lists(strategies.patterns, max_size=12), strategies.keys)
def test_many_patterns_match_together_as_each_does_alone(patterns: list[str], key: str) -> None:
    trie = Trie[str]()
    for pattern in patterns:
        trie.add(pattern, pattern)
    assert sorted(trie.match(key)) == sorted(p for p in patterns if topic_matches(p, key))


@given(strategies.patterns, strategies.keys)
def test_topics_match_as_trying_every_way_does(pattern: str, key: str) -> None:
    split = [text.split(".") if text else [] for text in (pattern, key)]
    assert topic_matches(pattern, key) == oracle(*split)


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({"k": 1}, {"k": 1, "other": 2}, True),
        ({"k": 1}, {}, False),
        ({"k": 1, "l": 2}, {"k": 1}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {"k": 1}, False),
        ({"x-match": "any", "k": 1, "l": 2}, {"l": 2}, True),
        ({"x-match": "any", "k": 1, "l": 2}, {"l": 3}, False),
        ({"x-match": "all", "x-k": 1}, {}, True),
        ({"x-match": "any", "x-k": 1}, {"x-k": 1}, False),
        ({"x-match": "all-with-x", "x-k": 1}, {}, False),
        ({"x-match": "any-with-x", "x-k": 1}, {"x-k": 1}, True),
        ({"k": True}, {"k": 1}, False),
        ({"k": 1}, {"k": True}, False),
        ({"k": 1}, {"k": 1.0}, False),
        ({"k": "1"}, {"k": 1}, False),
        ({"k": "v"}, {"k": "v"}, True),
    ],
)
def test_headers_match_by_mode_value_and_type(
    arguments: dict[str, Any], headers: dict[str, Any], matches: bool
) -> None:
    assert headers_match(arguments, headers) == matches


@pytest.mark.parametrize(
    ("value", "header", "before_4", "from_4"),
    [
        (1, 1.0, True, False),
        (1.5, 1.5, True, True),
        (True, 1, False, False),
        ("v", b"v", True, True),
        (1_700_000_000, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), True, False),
    ],
)
def test_numbers_and_times_in_headers_match_otherwise_before_4(
    value: Any, header: Any, before_4: bool, from_4: bool
) -> None:
    assert headers_match({"k": value}, {"k": header}, (3, 10, 8)) == before_4
    assert headers_match({"k": value}, {"k": header}, (4, 0, 5)) == from_4


@pytest.mark.parametrize(
    "kind", ["x-local-random", "x-consistent-hash", "x-modulus-hash", "x-delayed-message"]
)
def test_a_type_that_chooses_for_itself_is_named_and_not_guessed(kind: str) -> None:
    chooser = Exchange("x", kind)
    found = vhost(Exchange("first", "fanout"), chooser, into("first", "x"), into("first", "a"))
    index = Index(found | Definitions.of([into("x", "b", "k")]))
    assert match(index, "first", ["k"], {}) == Matched(("a",), (chooser,))


def test_cc_and_bcc_are_keys_too_and_a_wrong_one_is_refused() -> None:
    assert keys_of("k", {"CC": ["l"], "BCC": ["m", 7], "other": ["n"]}) == ("k", "l", "m")
    with pytest.raises(ValueError, match="CC is not a list"):
        keys_of("k", {"CC": "l"})
    with pytest.raises(ValueError, match="longer than 255 bytes"):
        keys_of("é" * 128, {})


@pytest.mark.parametrize(
    ("kind", "key", "queues"),
    [
        ("direct", "k", ["a"]),
        ("direct", "k.l", []),
        ("fanout", "anything", ["a", "b"]),
        ("topic", "k", ["a"]),
        ("topic", "k.l", ["b"]),
    ],
)
def test_each_type_of_exchange_routes_in_its_own_way(
    kind: str, key: str, queues: list[str]
) -> None:
    found = vhost(Exchange("x", kind), into("x", "a", "k"), into("x", "b", "*.l"))
    assert routed(found, "x", key) == queues


def test_the_default_exchange_knows_every_queue_by_its_name() -> None:
    assert routed(vhost(), "", "a") == ["a"]
    assert routed(vhost(), "", "c") == []
    assert routed(vhost(), "", "b", "a", "b") == ["a", "b"]


def test_a_queue_gets_one_copy_however_many_bindings_lead_to_it() -> None:
    found = vhost(
        Exchange("x", "topic"),
        Exchange("y", "fanout"),
        into("x", "a", "#"),
        into("x", "a", "k"),
        into("x", "y", "k"),
        into("y", "a"),
    )
    assert routed(found, "x", "k", "k") == ["a"]


def test_a_binding_to_a_missing_queue_or_exchange_leads_nowhere() -> None:
    found = vhost(Exchange("x"), Binding("x", "gone", "k"), Binding("x", "gone", "k", False))
    assert routed(found, "x", "k") == []
    assert routed(found, "gone", "k") == []


def test_exchanges_bound_in_a_ring_are_passed_once() -> None:
    ring = vhost(
        Exchange("x", "fanout"),
        Exchange("y", "fanout"),
        into("x", "y"),
        into("y", "x"),
        into("y", "a"),
        into("x", "x"),
    )
    assert routed(ring, "x", "k") == routed(ring, "y", "k") == ["a"]


def test_an_alternate_exchange_takes_only_what_no_binding_matches() -> None:
    first = Exchange("x", arguments=Arguments({"alternate-exchange": "lost"}))
    found = vhost(first, Exchange("lost", "fanout"), into("x", "a", "k"), into("lost", "b"))
    assert routed(found, "x", "k") == ["a"]
    assert routed(found, "x", "other") == ["b"]


def test_an_alternate_exchange_is_not_asked_when_a_bound_exchange_takes_it_in_vain() -> None:
    first = Exchange("x", arguments=Arguments({"alternate-exchange": "lost"}))
    dead_end = Exchange("y")
    found = vhost(first, dead_end, Exchange("lost", "fanout"), into("x", "y"), into("lost", "b"))
    assert routed(found, "x", "") == []


def test_an_alternate_exchange_named_like_the_default_one_takes_nothing() -> None:
    """The broker looks the default exchange up and finds no binding (rabbit_exchange.erl)."""
    first = Exchange("x", arguments=Arguments({"alternate-exchange": ""}))
    assert routed(vhost(first), "x", "a") == []


def test_alternate_exchanges_in_a_ring_end() -> None:
    one = Exchange("x", arguments=Arguments({"alternate-exchange": "y"}))
    other = Exchange("y", arguments=Arguments({"alternate-exchange": "x"}))
    assert routed(vhost(one, other), "x", "k") == []


def test_a_headers_exchange_asks_the_headers() -> None:
    found = vhost(Exchange("x", "headers"), into("x", "a", kind="pdf"), into("x", "b", kind="png"))
    assert routed(found, "x", "ignored", kind="pdf") == ["a"]
    assert routed(found, "x", "ignored") == []


@given(strategies.definitions(), strategies.keys)
def test_every_vhost_routes_into_queues_that_exist_each_once(found: Definitions, key: str) -> None:
    names = {queue.name for queue in found.queues}
    for exchange in (*strategies.EXCHANGES, "gone", ""):
        queues = routed(found, exchange, key)
        assert queues == sorted(set(queues) & names)
