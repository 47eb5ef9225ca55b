"""Stars in the values of fields: what they mean in the database, and how many are allowed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from analytics.search.query import MOST_WILDCARDS, QueryError, parse
from delayboard.dead_letters.search import match, matching
from tests.builders import make_broker
from tests.delayboard.search.builders import found, index, put
from topology.models import Broker

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


@pytest.fixture
def broker() -> Broker:
    return make_broker()


def ids(broker: Broker, query: str) -> list[int]:
    return list(matching(None, broker, query).values_list("pk", flat=True))


@pytest.mark.parametrize(
    "sign", ["?", "[", "]", "[a]", "%", "_", "\\", "^", "-", "(", ".", "\n", "+"]
)
def test_every_other_sign_stands_for_itself(broker: Broker, sign: str) -> None:
    wanted = put(broker, message_id=f"a{sign}b", headers={"note": f"x{sign}y{sign}z"})
    for other in ("ab", "axb", "aab", "axxb"):
        put(broker, message_id=other, headers={"note": f"x{other}y{other}z"})
    index()
    quoted = sign.replace("\\", "\\\\")
    for query in (f'id:"*A{quoted}b"', f'header.note:"x{quoted}y*z"', f'id:"a{quoted}*"'):
        assert ids(broker, query) == found(broker, query) == [wanted.pk], query


def test_stars_in_the_names_of_queues(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [put(broker, queue=name) for name in ("Orders.dead_1", "orders.deadx1", "other")]
    assert ids(broker, "queue:orders.dead_*") == [rows[0].pk]
    assert ids(broker, "queue:*ers.d*1") == [rows[1].pk, rows[0].pk]
    assert ids(broker, "-queue:*ers.d*1") == [rows[2].pk]
    monkeypatch.setattr(match, "MOST_QUEUES", 2)
    with pytest.raises(QueryError, match="too many queues"):
        matching(None, broker, "queue:other")


def test_a_value_has_few_stars(broker: Broker) -> None:
    now = datetime.now(UTC)
    parse("id:" + "a*" * MOST_WILDCARDS, now, match.FIELDS)
    parse('id:"' + "a\\\\*" * MOST_WILDCARDS + '"', now, match.FIELDS)
    for query in ("id:" + "a*" * (MOST_WILDCARDS + 1), "header.a:" + "*" * (MOST_WILDCARDS + 1)):
        with pytest.raises(QueryError, match=f"more than {MOST_WILDCARDS} wildcards"):
            parse(query, now, match.FIELDS)


def test_no_expression_is_made_of_what_is_typed(broker: Broker) -> None:
    put(broker)
    query = "id:*a*a*a*a*a*b header.note:*a*b -body.note:*a*b"
    sql = str(matching(None, broker, query).query).upper()
    assert sql.count("LIKE") == 3
    assert "REGEXP" not in sql
    assert "~" not in sql


@pytest.mark.parametrize("text", ["a\x00b", "id:\ud800", "queue:\x00*"])
def test_signs_that_no_text_has_are_refused(text: str) -> None:
    with pytest.raises(QueryError, match="invalid characters"):
        parse(text, datetime.now(UTC), match.FIELDS)
