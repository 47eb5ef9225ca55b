from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.parked.redact_cause import hidden_columns, hides_history
from delayboard.models import RedactionKind, RedactionRule
from tests.builders import make_broker, make_user
from topology import redaction
from topology.models import Role
from topology.redaction import HIDDEN, PatternError, Redaction, check_pattern, rules_for

ORDER = b'{"customer": {"email": "a@b", "name": "Ada"}, "items": [{"card": 1.10}, {"card": 2}]}'


@pytest.mark.parametrize(
    ("pattern", "name", "hidden"),
    [
        ("Authorization", "authorization", True),
        ("x-*-token", "X-Tenant-Token", True),
        ("x-*-token", "x-token", False),
        ("*", "anything", True),
        ("a.b", "axb", False),
        ("*secret*", "my secret name", True),
        ("a*a", "a", False),
    ],
)
def test_headers_are_hidden_by_name(pattern: str, name: str, hidden: bool) -> None:
    assert Redaction((pattern,)).hides_header(name) == hidden


def test_a_rule_on_cc_hides_its_keys_in_every_death() -> None:
    death = {"queue": "orders", "routing-keys": ["orders", "secret-copy"]}
    rules = Redaction(("c?", "CC"))
    shown = rules.headers({"CC": ["secret-copy"], "x-death": [death]})
    assert shown == {
        "CC": HIDDEN,
        "x-death": [{"queue": "orders", "routing-keys": HIDDEN}],
    }
    assert "routing_key" in hidden_columns(rules)
    assert hides_history(rules)
    assert not hides_history(Redaction(("CCC", "C")))


def test_hidden_headers_keep_their_names_also_within_tables() -> None:
    headers = {"token": b"\xff", "t": {"TOKEN": 1, "n": 2}, "l": [{"token": None}], "n": 1.5}
    shown = Redaction(("token",)).headers(headers)
    assert shown == {
        "token": HIDDEN,
        "t": {"TOKEN": HIDDEN, "n": 2},
        "l": [{"token": HIDDEN}],
        "n": 1.5,
    }


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("$.customer.email", {"customer": {"email": HIDDEN, "name": "Ada"}}),
        ("CUSTOMER.Email", {"customer": {"email": HIDDEN, "name": "Ada"}}),
        ("customer.*", {"customer": {"email": HIDDEN, "name": HIDDEN}}),
        ("customer", {"customer": HIDDEN}),
        ("$..email", {"customer": {"email": HIDDEN, "name": "Ada"}}),
        ("['customer'][\"name\"]", {"customer": {"email": "a@b", "name": HIDDEN}}),
        ("items[*].card", {"items": [{"card": HIDDEN}, {"card": HIDDEN}]}),
        ("items.card", {"items": [{"card": HIDDEN}, {"card": HIDDEN}]}),
        ("items[*]", {"items": HIDDEN}),
        ("..card", {"items": [{"card": HIDDEN}, {"card": HIDDEN}]}),
        ("card", {}),
        ("custom", {}),
    ],
)
def test_values_of_a_body_are_hidden_by_path(pattern: str, expected: dict[str, Any]) -> None:
    shown = Redaction(body_paths=(pattern,)).body(ORDER)
    assert json.loads(shown) == {**json.loads(ORDER), **expected}


def test_what_is_not_hidden_stays_as_it_was_written() -> None:
    body = b'{"a": 1.10, "a": 1e5, "n": 12345678901234567890.5, "s": "x", "bad": "\\ud800"}'
    assert Redaction(body_paths=("s",)).body(body) == body.replace(b'"x"', b'"redacted"')


@pytest.mark.parametrize(
    "body", [b"a=1&card=4111", b"\xff\x00", b"4111111111111111", b"[" * 5000, b'{"cut": ', b'"x"']
)
def test_a_body_that_is_no_json_is_hidden_whole(body: bytes) -> None:
    rules = Redaction(body_paths=("card",))
    assert rules.body(body) == HIDDEN.encode()
    assert Redaction(("card",)).body(body) == body


def test_a_body_that_is_nested_deep_is_shown_masked_or_hidden() -> None:
    for depth in (50, 100, 400, 900, 990):
        body = b'{"a":' * depth + b'{"card": 4111}' + b"}" * depth
        assert b"4111" not in Redaction(body_paths=("..card",)).body(body)


def test_dollar_alone_hides_every_body_but_an_empty_one() -> None:
    assert json.loads(Redaction(body_paths=("$",)).body(ORDER)) == HIDDEN
    assert Redaction(body_paths=("$",)).body(b"") == b""


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("customer.email", True),
        ("customer.email.domain", True),
        ("customer", False),
        ("items[3].card", True),
        ("items.card", True),
        ("items", False),
    ],
)
def test_a_path_in_words_is_asked_as_search_writes_it(path: str, hidden: bool) -> None:
    rules = Redaction(body_paths=("$.customer.email", "items[*].card"))
    assert rules.hides_body_path(path) == hidden


@pytest.mark.parametrize("pattern", ["", "  ", "a..", "$.", "items[0]", "a[", "a]", "['']"])
def test_a_path_that_cannot_be_read_is_refused_and_as_a_row_hides_all(pattern: str) -> None:
    with pytest.raises(PatternError):
        check_pattern(RedactionKind.BODY, pattern)
    if pattern.strip():
        assert HIDDEN.encode() in Redaction(body_paths=(pattern,)).body(ORDER)
        assert b"Ada" not in Redaction(body_paths=(pattern,)).body(ORDER)


@given(st.text(), st.text())
def test_no_pattern_and_no_name_breaks_them(pattern: str, name: str) -> None:
    rules = Redaction((pattern,), (pattern,))
    rules.hides_header(name)
    rules.hides_body_path(name)
    rules.body(json.dumps({name: [name]}).encode())


def test_many_stars_are_no_trap() -> None:
    assert not Redaction(("*a" * 100 + "*b",)).hides_header("a" * 100_000)


@pytest.mark.django_db
def test_rules_hide_below_their_role_on_their_broker_or_everywhere() -> None:
    broker, other = make_broker(), make_broker(name="Other")
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="token", least_role=Role.OPERATOR
    )
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="card", broker=broker)
    viewer = make_user("viewer", Role.VIEWER)
    operator = make_user("operator", Role.OPERATOR)
    assert rules_for(viewer, broker) == Redaction(("token",), ("card",))
    assert rules_for(operator, broker) == Redaction((), ("card",))
    assert rules_for(operator, other) == redaction.NOTHING
    assert rules_for(operator, other).is_empty
    assert rules_for(make_user("admin", Role.ADMIN), broker).is_empty
    assert rules_for(make_user("nobody"), broker) == Redaction(("token",), ("card",))


def test_a_path_has_few_steps_of_any_depth() -> None:
    check_pattern(RedactionKind.BODY, "..a..b..c..d")
    for pattern in ("..a..b..c..d..e", "..a" * 60):
        with pytest.raises(PatternError, match="at most 4"):
            check_pattern(RedactionKind.BODY, pattern)
        assert json.loads(Redaction(body_paths=(pattern,)).body(ORDER)) == HIDDEN


def test_each_path_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = Redaction.hides_body_path

    def counted(self: Redaction, path: str) -> bool:
        asked.append(path)
        return real(self, path)

    monkeypatch.setattr(Redaction, "hides_body_path", counted)
    body = json.dumps({"items": [{"sku": 1, "card": n} for n in range(1000)]}).encode()
    shown = json.loads(Redaction(body_paths=("..card",)).body(body))
    assert shown["items"] == [{"sku": 1, "card": HIDDEN}] * 1000
    assert sorted(asked) == ["", "items", "items.card", "items.sku"]


def test_a_long_body_or_one_of_many_names_is_hidden_whole() -> None:
    rules = Redaction(body_paths=("card",))
    long = json.dumps({"a": "x" * redaction.MASKED_BYTES}).encode()
    wide = json.dumps({f"{n:x}": 1 for n in range(redaction.MOST_PATHS)}).encode()
    assert len(wide) < redaction.MASKED_BYTES
    for body in (long, wide):
        assert rules.body(body) == HIDDEN.encode()
        assert Redaction(("card",)).body(body) == body
    assert rules.body(b'{"a": 1}') == b'{"a": 1}'
    assert rules.body(b'{"a": "' + b"x" * 100 + b'"}', most=50) == HIDDEN.encode()
