"""What a mapping says, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.events import decode, encode
from analytics.mappings import mapping as mappings
from analytics.mappings.erlang import read_erlang
from analytics.mappings.mapping import (
    MappingError,
    SlowPattern,
    load_shipped,
    parse,
    shipped_names,
)
from analytics.mappings.propose import Choices, guess
from analytics.mappings.values import RecordError

DEFAULTS = {"broker": "main", "topology": "orders"}
RULE = '[[events]]\nkind = "delivered"\n'
AT = datetime(2026, 11, 20, 8, 30, 0, 250_000, UTC)


def read(fields: str, record: dict[str, Any], rule: str = RULE) -> Any:
    text = f"[fields]\n{fields}\n{rule}"
    (event,) = parse(text, "test").read(record, DEFAULTS)
    # What is read can be written and read again.
    assert decode(encode(event)) == event
    return event


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ('"at"', "2026-11-20T08:30:00.250Z"),
        ('"at"', "2026-11-20T09:30:00.250000123+01:00"),
        ('{ from = "at", zone = "Europe/Berlin" }', "2026-11-20 09:30:00,250"),
        ('{ from = "at", time = "s" }', 1795163400.25),
        ('{ from = "at", time = "s" }', "1795163400.25"),
        ('{ from = "at", time = "ms" }', 1795163400250),
        ('{ from = "at", time = "us" }', 1795163400250000),
        ('{ from = "at", time = "ns" }', 1795163400250000999),
        ('{ from = "at", time = "%d/%b/%Y:%H:%M:%S.%f %z" }', "20/Nov/2026:09:30:00.25 +0100"),
        ('{ from = ["no", "at"], time = "ms" }', 1795163400250),
        ('{ template = "{day}T{at}Z" }', "08:30:00.25"),
        ('{ from = "at", time = "ms", minus = { value = 2, unit = "s" } }', 1795163402250),
    ],
)
def test_a_moment_is_read_in_its_form_and_zone(spec: str, value: object) -> None:
    record = {"at": value, "day": "2026-11-20"}
    assert read(f"recorded_at = {spec}", record).recorded_at == AT


@pytest.mark.parametrize(
    ("spec", "value", "ms"),
    [
        ('{ from = "d" }', 1500, 1500),
        ('{ from = "d", unit = "s" }', "1.5", 1500),
        ('{ from = "d", unit = "ns" }', 1_500_000_000, 1500),
        ('{ from = "d", unit = "m" }', 2, 120_000),
        ('{ from = "d", unit = "span" }', "00:00:01.5000000", 1500),
        ('{ from = "d", unit = "span" }', "1.00:00:00", 86_400_000),
        ('{ from = "d", unit = "span" }', "PT1M30S", 90_000),
        ('{ from = "d", match = "after (\\\\d+) s", unit = "s" }', "retry after 5 s", 5000),
        ('{ from = "d", since = { from = "at" } }', "2026-11-20T08:30:05.25Z", 5000),
        ('{ from = "no", default = 7 }', 0, 7),
    ],
)
def test_a_delay_is_read_in_its_unit(spec: str, value: object, ms: int) -> None:
    record = {"at": AT.isoformat(), "d": value}
    fields = f'recorded_at = "at"\nrequested_delay_ms = {spec}'
    assert read(fields, record).requested_delay_ms == ms


@pytest.mark.parametrize(
    ("fields", "record", "why"),
    [
        ('recorded_at = "at"', {}, "The line has no `at`, which is the field recorded_at."),
        ('recorded_at = "at"', {"at": "soon"}, "recorded_at: 'soon' is not a time in ISO 8601"),
        ('recorded_at = "at"', {"at": "2026-11-20T08:30:00"}, "has no time zone. Set zone"),
        ('recorded_at = { from = "at", time = "s" }', {"at": "1e400"}, "out of range"),
        ('recorded_at = { from = "at", time = "s" }', {"at": 1e17}, "recorded_at"),
        ('recorded_at = { from = "at", time = "s" }', {"at": True}, "'true' is no number"),
        ('recorded_at = "at"\nattempt = "n"', {"at": "2026-11-20Z", "n": 1.5}, "attempt: '1.5' is"),
        ('recorded_at = "at"\nattempt = "n"', {"at": "2026-11-20Z", "n": -1}, "attempt: -1 is out"),
    ],
)
def test_a_record_that_is_no_event_names_its_field(
    fields: str, record: dict[str, Any], why: str
) -> None:
    record = {
        name: value if value != "2026-11-20Z" else AT.isoformat() for name, value in record.items()
    }
    with pytest.raises(RecordError) as refused:
        read(fields, record)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("=", "is not TOML"),
        ("", "no [[events]]"),
        ('forma = "csv"', "unknown part: forma"),
        ('format = "xml"', "none of json"),
        ('format = "text"', "A pattern belongs to the format text"),
        ('format = "text"\npattern = "("', "no regular expression"),
        ('format = "text"\npattern = "x"', "no named group"),
        ('[[events]]\nkind = "parked"', "the kind must be one of"),
        (RULE, "recorded_at is missing"),
        ('[fields]\nv = "x"\n' + RULE, "v is no field"),
        ("[fields]\nrecorded_at = 1\n" + RULE, "write a path"),
        ('[fields]\nrecorded_at = { form = "x" }\n' + RULE, "unknown part: form"),
        ('[fields]\nrecorded_at = { zone = "UTC" }\n' + RULE, "exactly one of"),
        (
            '[fields]\nrecorded_at = { from = "x", zone = "Mars" }\n' + RULE,
            "zone 'Mars' is unknown",
        ),
        ('[fields]\nrecorded_at = { from = "x", time = "m" }\n' + RULE, "time must be one of"),
        ('quality = ["bad"]\n[fields]\nrecorded_at = "x"\n' + RULE, "quality “bad”"),
    ],
)
def test_a_mapping_that_cannot_be_used_says_which_part(text: str, why: str) -> None:
    with pytest.raises(MappingError) as refused:
        parse(text, "test")
    assert why in str(refused.value)


def test_rules_decide_by_all_their_conditions() -> None:
    text = """
[fields]
recorded_at = "at"
[[events]]
kind = "died"
when = { a = ["x", 1], "b.c" = { above = 2 }, d = { exists = false }, e = { not = "no" } }
[[events]]
kind = "published"
when = { a = { matches = "^x" } }
"""
    mapping = parse(text, "test")

    def kinds(**record: Any) -> list[str]:
        return [event.kind for event in mapping.read({"at": AT.isoformat(), **record}, DEFAULTS)]

    assert kinds(a="x", b={"c": 3}) == ["died", "published"]
    assert kinds(a=1, **{"b.c": "2.5"}) == ["died"]
    assert kinds(a="x", b={"c": 3}, d=0) == ["published"]
    assert kinds(a="x", b={"c": 3}, e="no") == ["published"]
    assert kinds(a="y", b={"c": 3}) == []


def test_the_first_records_of_an_unknown_log_become_a_mapping() -> None:
    records = [
        {"ts": 1795163400250, "kind": {"event": "msg delayed"}, "queue": "a", "delay": 5},
        {"ts": 1795163405300, "kind": {"event": "msg received"}, "queue": "a", "delay": 5},
    ]
    choices = guess(records, "json")
    assert (choices.time, choices.time_form, choices.event) == ("ts", "ms", "kind.event")
    mapping = parse(choices.to_toml('a "log"\n'), "test")
    events = [event for record in records for event in mapping.read(record, DEFAULTS)]
    assert [(event.kind, event.requested_delay_ms) for event in events] == [
        ("scheduled", 5000),
        ("delivered", 5000),
    ]
    assert events[0].content_id == events[1].content_id
    assert mapping.quality == ["no ids"]


@given(st.text(), st.text(), st.text(), st.lists(st.text(), max_size=3))
def test_whatever_names_a_log_has_its_proposed_mapping_can_be_read(
    title: str, path: str, event: str, values: list[str]
) -> None:
    kinds = dict.fromkeys([*values, "a"], "scheduled")
    parse(Choices("json", time=path, event=event, kinds=kinds, queue=path).to_toml(title), "test")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        "type",
        "uuid",
        "timestamp",
        "eta",
        "message",
        "queue",
        "event",
        "jid",
        "job_status",
        "headers",
    ]
)


@given(st.dictionaries(NAMES, JSON), st.sampled_from(shipped_names()))
def test_no_record_raises_anything_but_a_refusal(record: dict[str, Any], name: str) -> None:
    mapping = load_shipped(name)
    try:
        if mapping.trace is None:
            mapping.read(record, DEFAULTS)
        else:
            mapping.read_trace(record)
    except RecordError:
        pass


@pytest.mark.parametrize(
    "text", ["", "[", "{", "]", "[{]}", "<<1", '<<"a', "[" * 200, "a b", "<<300>>x", "#Ref<0.1>"]
)
def test_a_text_that_is_no_term_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        read_erlang(text)


def test_a_table_of_amqp_is_read_as_rabbitmq_prints_it() -> None:
    text = (
        '[{<<"a">>,array,[{signedint,1},{longstr,<<"ü \\"x\\""/utf8>>}]},'
        '{<<"n">>,void,undefined},\n'
        '{<<"t">>,table,[{<<"f">>,double,1.5},{<<"b">>,bool,true}]},{<<"raw">>,longstr,<<1,200>>}]'
    )
    assert read_erlang(text) == {
        "a": [1, 'ü "x"'],
        "n": None,
        "t": {"f": 1.5, "b": True},
        "raw": "\x01\\xc8",
    }


SLOW = r"^(a|aa)+$"


@pytest.mark.parametrize(
    "where",
    [
        f"[events.when]\ntext = {{ matches = '{SLOW}' }}\n",
        f"[events.fields]\nmessage_id = {{ from = \"text\", match = '{SLOW}' }}\n",
    ],
)
def test_a_pattern_that_takes_for_ever_ends(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(mappings, "SEARCH_SECONDS", 0.05)
    read_by = parse(f'[fields]\nrecorded_at = "at"\n{RULE}{where}', "test")
    with pytest.raises(SlowPattern, match="takes more than 0 seconds for a text"):
        read_by.read({"at": AT.isoformat(), "text": "a" * 100 + "!"}, DEFAULTS)
