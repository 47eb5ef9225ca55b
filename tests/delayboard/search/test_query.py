from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.search.query import (
    Condition,
    Pattern,
    Query,
    QueryError,
    Range,
    Word,
    number_of,
    parse,
)
from delayboard.dead_letters.search import FIELDS

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def above(number: float) -> float:
    return math.nextafter(number, math.inf)


def day(number: int) -> datetime:
    return datetime(2026, 11, number, tzinfo=UTC)


def condition(text: str) -> Condition:
    (one,) = parse(text, NOW, FIELDS).conditions
    return one


def test_the_query_of_the_issue_is_read() -> None:
    read = parse("reason:expired queue:orders.* header.tenant:42 body.amount:>100", NOW, FIELDS)
    assert read == Query(
        conditions=(
            Condition("reason", Pattern(("expired",))),
            Condition("queue", Pattern(("orders.", ""))),
            Condition("header.tenant", Pattern(("42",))),
            Condition("body.amount", Range(above(100))),
        )
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one TWO", (Word("one"), Word("two"))),
        ('"two  words"', (Word("two  words"),)),
        ("-no", (Word("no", True),)),
        ('-"no no"', (Word("no no", True),)),
        ("-", (Word("-"),)),
        ('"http://x"', (Word("http://x"),)),
        ('"say \\"hi\\""', (Word('say "hi"'),)),
        ("a*b", (Word("a*b"),)),
        ('a"b', (Word('a"b'),)),
        ("Größe", (Word("grösse"),)),
        (" \u3000\n", ()),
        ('""', ()),
    ],
)
def test_words(text: str, words: tuple[Word, ...]) -> None:
    assert parse(text, NOW, FIELDS) == Query(words=words)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('key:""', Pattern(("",))),
        ('"header.my name":x', Pattern(("x",))),
        ('key:"a b*"', Pattern(("a b", ""))),
        ("key:a\\*b", Pattern(("a*b",))),
        ("key:*x**y*", Pattern(("", "x", "", "y", ""))),
        ("key:a:b", Pattern(("a:b",))),
        ("size:>10k", Range(above(10_000))),
        ("size:<=1.5MB", Range(high=above(1_500_000))),
        ("deaths:3", Range(3, above(3))),
        ("body.x:>=-2.5e3", Range(-2500)),
        ("parked:>2026-11-01", Range(day(2))),
        ("parked:>=2026-11-01", Range(day(1))),
        ("parked:<2026-11-01", Range(high=day(1))),
        ("parked:<=2026-11-01", Range(high=day(2))),
        ("died-at:2026-11-01", Range(day(1), day(2))),
        ('died-at:"2026-11-01 00:00"', Range(day(1), day(1) + timedelta(minutes=1))),
        ("died-at:>=2026-11-01T02:00+02:00", Range(day(1))),
        ("died-at:<2h", Range(NOW - timedelta(hours=2))),
        ("died-at:>1d", Range(high=NOW - timedelta(days=1))),
    ],
)
def test_values(text: str, value: object) -> None:
    assert condition(text).value == value
    assert condition(f"-{text}") == Condition(condition(text).field, condition(text).value, True)


def test_what_is_chosen() -> None:
    assert parse("", NOW, FIELDS).chosen == {}
    read = parse("state:Discarded repeat:no", NOW, FIELDS)
    assert read == Query(chosen={"state": "discarded", "repeat": "no"})
    assert parse("state:any state:any", NOW, FIELDS).chosen == {"state": "any"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("foo:1", "In “foo:1” the field is unknown. Use one of reason, died, exchange"),
        ("header.:1", "is unknown"),
        ("header:1", "is unknown"),
        ('x "open', "The quote at character 3 is not closed."),
        ('key:"open', "character 5"),
        ("key:", 'Write key:"" for an empty one.'),
        ("reason::(", 'the value begins with a colon. Write reason:":("'),
        ("deaths:many", "In “deaths:many” a number is expected, such as deaths:>3."),
        ("body.x:>many", "a number is expected"),
        ("reason:>x", "reason is a text field, which allows no < or >"),
        ("size:big", "a size is expected"),
        ("parked:soon", "a time is expected"),
        ("parked:2h", "an age needs < or >, such as parked:<2h"),
        ("parked:>999999999h", "a time is expected"),
        ("parked:>9999-12-31", "a time is expected"),
        ("state:lost", "one of parked, discarded, replaying, delayed, replayed, any"),
        ("-state:parked", "one of"),
        ("repeat:maybe", "write repeat: and one of yes, no."),
        ("state:parked state:discarded", "“state:” has two different values"),
        ("repeat:yes repeat:no", "“repeat:” has two different values"),
        ("x " * 21, "more than 20"),
        ("x" * 501, "longer than 500"),
    ],
)
def test_what_is_no_query_is_explained(text: str, said: str) -> None:
    with pytest.raises(QueryError) as refused:
        parse(text, NOW, FIELDS)
    assert said in str(refused.value)


@given(st.text(alphabet=st.sampled_from('ab:"*\\-<>=. 0129keyhadrsizparkd\x00ß'), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read = parse(text, NOW, FIELDS)
    except QueryError as error:
        said = str(error)
        assert said.endswith((".", '".'))
    else:
        assert all(word.text for word in read.words)


@given(st.lists(st.text(alphabet="ab"), min_size=1, max_size=4), st.text(alphabet="ab"))
def test_a_pattern_matches_what_a_regular_expression_does(pieces: list[str], text: str) -> None:
    import re

    assert Pattern(tuple(pieces)).matches(text) == bool(re.fullmatch(".*".join(pieces), text))


@pytest.mark.parametrize(
    ("text", "number"),
    [("42", 42.0), ("-1.5", -1.5), ("1e3", 1000.0), ("", None), ("nan", None), ("0x1", None),
     ("9007199254740993", None), ("1" * 60, None), ("1e99", None), ("٣", 3.0)],
)  # fmt: skip
def test_numbers_are_those_that_can_be_told_exactly(text: str, number: float | None) -> None:
    assert number_of(text) == number
