from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from analytics.models import ScheduledBody, ScheduledMessage, ScheduledText, TextPosition
from analytics.scheduled.queries import listing, texts
from analytics.scheduled.queries.listing import parse
from analytics.search import find
from topology.database import text_index
from topology.models import Topology

pytestmark = pytest.mark.both_databases

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(hours=1)
WANTED = 51


def put(topology: Topology, number: int, **changes: object) -> list[ScheduledMessage]:
    """Waiting rows that came an hour ago, due one second after the other."""
    first = ScheduledMessage.objects.count()
    values = {"entered_at": LONG_AGO, "headers_json": '{"tenant":"Tenant"}'} | changes
    return ScheduledMessage.objects.bulk_create(
        ScheduledMessage(
            broker=topology.broker,
            topology=topology,
            key=f"m{place}",
            message_id=f"Message-{place}",
            content_id=f"c{place}",
            attempt=1,
            requested_delay=timedelta(hours=1),
            due_at=NOW + timedelta(seconds=place + 1),
            destination="orders",
            **values,
        )
        for place in range(first, first + number)
    )


def found(topology: Topology, text: str, after: int | None = None) -> tuple[list[int], bool]:
    """The ids on a page, and whether a limit ended the search."""
    filters = parse({"text": text}, NOW)
    assert not filters.problems
    rows = listing.filter_waiting([topology.broker], filters, NOW)
    result = find.find(
        listing.ScheduledSearch([topology.broker], rows, filters.query), after, WANTED
    )
    return list(result.ids), result.was_cut


def indexed() -> set[int]:
    return set(ScheduledText.objects.values_list("pk", flat=True))


@pytest.fixture
def many(topology: Topology) -> list[ScheduledMessage]:
    """More than are read as they are, with texts."""
    rows = put(topology, find.HEAD + 60)
    while texts.keep_up():
        pass
    assert indexed() == {row.pk for row in rows}
    return rows


def test_what_is_far_down_is_found_by_the_index(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    last = many[-1]
    assert found(topology, last.message_id) == ([last.pk], False)
    assert found(topology, last.message_id.upper()) == ([last.pk], False)
    assert found(topology, "nowhere") == ([], False)
    assert found(topology, "sage-359x") == ([], False)


def test_what_is_common_is_found_among_the_next(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    assert found(topology, "tenant") == ([row.pk for row in many[:WANTED]], False)
    rest = found(topology, "tenant", many[find.HEAD].pk)
    assert rest == ([row.pk for row in many[find.HEAD + 1 :][:WANTED]], False)


def test_a_word_of_two_signs_is_looked_for_without_the_index(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    assert found(topology, '"-7"')[0] == [row.pk for row in many if "-7" in row.message_id]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("header.tenant:unusual", 1),
        ("header.tenant:UN*ual", 1),
        ("header.tenant:tenant -header.tenant:unusual message-35", 11),
        ("header.n:>6", 1),
        ("header.n:7.0 body.a.b:x", 1),
        ("-header.n:7 id:message-360", 0),
        ('header.tenant:"" header.n:7', 0),
        ("header.tenant:*u*l body.a.b:X", 1),
        ("correlation:cor* attempt:1 size:7", 1),
        ("queue:QUEUE-1 key:*.new exchange:events", 1),
        ("entered:<2h queue:*", 361),
        ("entered:>2h", 0),
    ],
)
def test_a_field_is_searched(
    topology: Topology, many: list[ScheduledMessage], text: str, number: int
) -> None:
    (row,) = put(
        topology,
        1,
        headers_json='{"tenant":"Unusual","n":7}',
        correlation_id="Corr",
        size=7,
        queue="queue-1",
        exchange="events",
        routing_key="orders.new",
    )
    ScheduledBody.objects.create(message=row, body=b'{"a":{"b":"X"}}')
    texts.keep_up()
    ids, _ = found(topology, text)
    assert len(ids) == min(number, WANTED)
    if number == 1:
        assert ids == [row.pk]


def test_what_is_too_young_for_the_index_is_found_too(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    (young,) = put(topology, 1, correlation_id="Just-Came", entered_at=datetime.now(UTC))
    texts.keep_up()
    assert young.pk not in indexed()
    assert found(topology, "just-came") == ([young.pk], False)


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ('{"name":"Größe"}', b"", "GRÖSSE"),
        ('{"a":"100%"}', b"", "100%"),
        ('{"a_b":"x"}', b"", "a_b"),
        ("{}", "Straße 7".encode(), '"strasse 7"'),
        ("{}", b'{"order": 77}', '"\\"ORDER\\": 77"'),
        ("{}", b"x" * 9000 + b"\xff", ""),
        ("{}", b"\xff\xfebinary", ""),
        ('{"path":"C:\\\\src\\\\app","b":["say \\"hi\\""]}', b"", '"say \\"hi\\""'),
        ('{"path":"C:\\\\src\\\\app"}', b"", '"c:\\\\src\\\\app"'),
    ],
)
def test_headers_and_text_bodies_are_searched_by_what_they_say(
    topology: Topology, many: list[ScheduledMessage], headers: str, body: bytes, text: str
) -> None:
    (row,) = put(topology, 1, headers_json=headers)
    ScheduledBody.objects.create(message=row, body=body)
    for _ in ("as it is", "by the index"):
        if text:
            assert found(topology, text)[0] == [row.pk]
        assert row.pk not in found(topology, "binary")[0]
        texts.keep_up()
    assert row.pk in indexed()


def test_a_search_that_was_cut_goes_on(
    topology: Topology, many: list[ScheduledMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST", 310)
    monkeypatch.setattr(find, "HEAD", 3)
    monkeypatch.setattr(text_index, "MOST_READ", 1)
    assert found(topology, "message-35") == ([many[35].pk], True)
    assert found(topology, "message-35", many[309].pk) == ([row.pk for row in many[350:]], False)


def test_a_message_that_left_leaves_the_index(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    gone, late = many[:2]
    ScheduledMessage.objects.filter(pk=gone.pk).update(left_at=NOW)
    ScheduledText.objects.filter(pk__in=[gone.pk, late.pk]).update(check_at=LONG_AGO)
    assert texts.keep_up() == 1
    assert gone.pk not in indexed()
    assert ScheduledText.objects.get(pk=late.pk).check_at > NOW
    assert found(topology, f'id:"{gone.message_id}" message')[0] == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM analytics_scheduledtext")
        assert cursor.fetchone()[0] == len(many) - 1


def test_a_message_that_is_deleted_takes_its_text_along(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    row = many[-1]
    ScheduledMessage.objects.filter(pk=row.pk).delete()
    assert row.pk not in indexed()
    assert found(topology, row.message_id) == ([], False)


def test_short_delays_are_over_before_they_cost_anything(topology: Topology) -> None:
    put(topology, 20, left_at=NOW)
    young = put(topology, 2, entered_at=datetime.now(UTC))
    assert texts.keep_up() == 0
    assert not indexed()
    assert TextPosition.objects.get().read_to == young[0].pk - 1


def test_nothing_to_do_changes_nothing(topology: Topology, many: list[ScheduledMessage]) -> None:
    assert texts.keep_up() == 0


@pytest.mark.parametrize(
    ("sample", "threes"),
    [
        (["tenant one", "tenant two"], ["t-7"]),
        ([], ["ten", "ena", "nan", "ant", "nt-"]),
        (["tenant-7"], ["ten", "ena", "nan", "ant", "nt-", "t-7"]),
    ],
)
def test_the_index_is_asked_for_what_tells_most(sample: list[str], threes: list[str]) -> None:
    reported = text_index.rare_trigrams("tenant-7", sample)
    assert set(threes) <= set(reported)
    assert len(reported) <= max(text_index.MOST_TRIGRAMS, len(threes))
