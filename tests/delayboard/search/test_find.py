from __future__ import annotations

from collections.abc import Callable

import pytest

from analytics.search import find
from delayboard.dead_letters.search import match, matching, search_by
from delayboard.models import ParkedField, ParkedMessage, ParkedPosition, ParkedText
from tests.builders import make_broker
from tests.delayboard.search.builders import found, index, put
from tests.topology.builders import NOON
from topology.database import text_index
from topology.models import Broker

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

NUMBER = 60


@pytest.fixture
def broker() -> Broker:
    return make_broker()


@pytest.fixture(params=["large", "small"])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As they are, or so small that every way is taken and every answer goes on."""
    if request.param == "small":
        for module, name, value in (
            (find, "HEAD", 4),
            (find, "MOST", 6),
            (match, "MOST", 6),
            (find, "FEW", 1),
            (text_index, "MOST_READ", 8),
            (match, "MOST_SERIES", 2),
        ):
            monkeypatch.setattr(module, name, value)
    return str(request.param)


@pytest.fixture
def many(broker: Broker) -> list[ParkedMessage]:
    """Messages of two brokers; number n of ours has the tenant n % 7 and the amount 10 n."""
    other = make_broker(name="Other")
    rows = []
    for number in range(NUMBER):
        rows.append(
            put(
                broker,
                {"amount": number * 10, "items": [{"sku": f"S{number % 3}"}, {"sku": "Same"}]},
                {"tenant": number % 7, "Route": f"way-{number % 4}"},
                queue=f"queue-{number % 3}",
                reason="rejected" if number % 5 else "expired",
                message_id=f"Message-{number}",
            )
        )
        put(other, {"amount": number * 10}, {"tenant": number % 7}, message_id=f"Message-{number}")
    ParkedMessage.objects.filter(pk__in=[row.pk for row in rows[:10]]).update(state="discarded")
    ParkedMessage.objects.filter(pk=rows[30].pk).update(repeat_of=rows[29].pk)
    return rows


QUESTIONS: dict[str, Callable[[int], bool]] = {
    "": lambda n: True,
    "state:parked": lambda n: True,
    "header.tenant:3": lambda n: n % 7 == 3,
    "HEADER.Tenant:3": lambda n: n % 7 == 3,
    "-header.tenant:3": lambda n: n % 7 != 3,
    "header.tenant:>4": lambda n: n % 7 > 4,
    "header.tenant:>=4 header.tenant:<6": lambda n: 4 <= n % 7 < 6,
    "header.tenant:3.0": lambda n: n % 7 == 3,
    "header.route:way-*": lambda n: True,
    "header.route:*-2": lambda n: n % 4 == 2,
    "header.route:way-1 header.tenant:2": lambda n: n % 4 == 1 and n % 7 == 2,
    "body.amount:>550": lambda n: n * 10 > 550,
    "body.amount:<=300": lambda n: n * 10 <= 300,
    "body.amount:210": lambda n: n == 21,
    "body.items.sku:s1": lambda n: n % 3 == 1,
    "-body.items.sku:s1 body.items.sku:same": lambda n: n % 3 != 1,
    "reason:expired": lambda n: n % 5 == 0,
    "-reason:expired": lambda n: n % 5 != 0,
    "reason:exp* queue:queue-1": lambda n: n % 5 == 0 and n % 3 == 1,
    "queue:Queue-2": lambda n: n % 3 == 2,
    "queue:queue-* -queue:*-2": lambda n: n % 3 != 2,
    "queue:nowhere": lambda n: False,
    "reason:expired body.amount:>400": lambda n: n % 5 == 0 and n > 40,
    "died:orders exchange:orders key:orders": lambda n: True,
    "id:message-42": lambda n: n == 42,
    "id:message-4*": lambda n: n == 4 or 40 <= n < 50,
    "message-42": lambda n: n == 42,
    "MESSAGE-4": lambda n: n == 4 or 40 <= n < 50,
    '"\\"sku\\":\\"S2\\""': lambda n: n % 3 == 2,
    "absent": lambda n: False,
    "-way-1": lambda n: n % 4 != 1,
    "way-1 s2": lambda n: n % 4 == 1 and n % 3 == 2,
    "repeat:yes": lambda n: n == 30,
    "repeat:no header.tenant:2": lambda n: n != 30 and n % 7 == 2,
    "deaths:1": lambda n: True,
    "deaths:>1": lambda n: False,
    "size:>65": lambda n: n >= 100,
    "size:<65": lambda n: n < 100,
    f"parked:{NOON:%Y-%m-%d}": lambda n: True,
    "parked:<2020-01-01": lambda n: False,
    f"died-at:>={NOON:%Y-%m-%d} header.tenant:6": lambda n: n % 7 == 6,
}


@pytest.mark.usefixtures("bounds")
def test_what_is_found_is_what_fits(broker: Broker, many: list[ParkedMessage]) -> None:
    """None of them indexed yet, all, and as if half of them had just come."""
    assert_found(broker, many)
    index()
    assert_found(broker, many)
    for query, fits in QUESTIONS.items():
        keys = matching(None, broker, query).values_list("pk", flat=True)
        assert list(keys) == fitting(many, fits), query
    halves = [row.pk for row in many[30:]]
    ParkedField.objects.filter(parked_message__in=halves).delete()
    ParkedText.objects.filter(pk__in=halves).delete()
    ParkedPosition.objects.update(read_to=many[30].pk - 1)
    assert_found(broker, many)


def assert_found(broker: Broker, many: list[ParkedMessage]) -> None:
    for query, fits in QUESTIONS.items():
        assert found(broker, query) == fitting(many, fits), query


def fitting(many: list[ParkedMessage], fits: Callable[[int], bool]) -> list[int]:
    """The keys of those that fit, the newest first; the first ten are discarded."""
    return [row.pk for n, row in enumerate(many) if n >= 10 and fits(n)][::-1]


@pytest.mark.usefixtures("bounds")
def test_the_discarded_are_found_by_their_state(broker: Broker, many: list[ParkedMessage]) -> None:
    index()
    first = [row.pk for row in many[:10]][::-1]
    assert found(broker, "state:discarded") == first
    assert found(broker, "state:discarded header.tenant:3") == [many[3].pk]
    both = [row.pk for n, row in enumerate(many) if n % 7 == 3][::-1]
    assert found(broker, "state:any header.tenant:3") == both
    assert found(broker, "state:any") == [row.pk for row in many][::-1]


def test_a_page_goes_on_where_the_last_one_ended(broker: Broker, many: list[ParkedMessage]) -> None:
    ids = [row.pk for row in many[10:]][::-1]
    page = find.find(search_by(None, broker, ""), None, 20)
    assert (list(page.ids), page.edge) == (ids[:20], ids[19])
    page = find.find(search_by(None, broker, ""), page.edge, 30)
    assert (list(page.ids), page.edge) == (ids[20:], None)


def test_a_group_is_asked_for_by_its_number(broker: Broker, many: list[ParkedMessage]) -> None:
    group = many[11].group_id
    wanted = [n.pk for n in many[10:] if n.group_id == group][::-1]
    assert found(broker, f"group:{group}") == wanted
    assert (
        found(broker, f"group:{group} header.tenant:4")
        == [
            row.pk for n, row in enumerate(many) if n >= 10 and row.group_id == group and n % 7 == 4
        ][::-1]
    )
    assert found(broker, "group:999999999999999") == []


@pytest.mark.parametrize("text", ["100%", "a_b", 'say "hi"', "c:\\src\\app", "größe", "*", "[x]"])
def test_every_sign_is_looked_for_as_it_is(broker: Broker, text: str) -> None:
    parked_message = put(broker, {"value": text.upper()}, {"plain": f"<{text}>"})
    put(broker, {"value": "1005 axb"}, {"plain": "nothing"})
    index()
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("*", "\\*")
    for query in (f'"{quoted}"', f'header.plain:"<{quoted}>"', f'body.value:"{quoted}*"'):
        assert found(broker, query) == [parked_message.pk], query
        assert [row.pk for row in matching(None, broker, query)] == [parked_message.pk], query
