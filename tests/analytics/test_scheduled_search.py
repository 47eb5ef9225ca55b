from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from analytics.models import ScheduledBody, ScheduledMessage, ScheduledText, TextPosition
from analytics.scheduled.queries import listing, search, texts
from analytics.scheduled.queries.filter import Filter
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


def found(topology: Topology, text: str) -> tuple[list[int], str]:
    rows = listing.filter_waiting([topology.broker], Filter(), NOW)
    result = search.search(rows, text, WANTED)
    return [match.pk for match in result.matches], result.remark


def indexed() -> set[int]:
    return set(ScheduledText.objects.values_list("pk", flat=True))


@pytest.fixture
def many(topology: Topology) -> list[ScheduledMessage]:
    """More than are read as they are, with texts."""
    rows = put(topology, search.HEAD + 60)
    while texts.keep_up():
        pass
    assert indexed() == {row.pk for row in rows}
    return rows


def test_what_is_far_down_is_found_by_the_index(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    last = many[-1]
    assert found(topology, last.message_id) == ([last.pk], "")
    assert found(topology, last.message_id.upper()) == ([last.pk], "")
    assert found(topology, "nowhere") == ([], "")
    assert found(topology, "sage-359x") == ([], "")


def test_what_is_common_is_found_among_the_next(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    ids, remark = found(topology, "tenant")
    assert ids == [row.pk for row in many[: search.HEAD]]
    assert remark == f"Delayboard searched only the next {search.HEAD} messages in due order."


def test_two_parked_messages_are_looked_for_without_the_index(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    assert found(topology, "-7")[0] == [row.pk for row in many if "-7" in row.message_id]


def test_what_is_too_young_for_the_index_is_found_too(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    (young,) = put(topology, 1, correlation_id="Just-Came", entered_at=datetime.now(UTC))
    texts.keep_up()
    assert young.pk not in indexed()
    assert found(topology, "just-came") == ([young.pk], "")


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ('{"name":"Größe"}', b"", "GRÖSSE"),
        ('{"a":"100%"}', b"", "100%"),
        ('{"a_b":"x"}', b"", "a_b"),
        ('{"q":"say \\"hi\\""}', b"", 'say \\"hi\\"'),
        ("{}", "Straße 7".encode(), "strasse 7"),
        ("{}", b'{"order": 77}', '"ORDER": 77'),
        ("{}", b"x" * 9000 + b"\xff", ""),
        ("{}", b"\xff\xfebinary", ""),
        ('{"path":"C:\\\\src\\\\app","b":["say \\"hi\\""]}', b"", 'say "hi"'),
        ('{"path":"C:\\\\src\\\\app"}', b"", "c:\\src\\app"),
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


def test_a_search_that_was_cut_says_so(
    topology: Topology, many: list[ScheduledMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST", 3)
    monkeypatch.setattr(search, "DEPTHS", (310,))
    ids, remark = found(topology, "message-35")
    assert len(ids) >= 3
    assert remark == "More than 3 messages contain this text. The list shows some of them."


def test_a_message_that_left_leaves_the_index(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    gone, late = many[:2]
    ScheduledMessage.objects.filter(pk=gone.pk).update(left_at=NOW)
    ScheduledText.objects.filter(pk__in=[gone.pk, late.pk]).update(check_at=LONG_AGO)
    assert texts.keep_up() == 1
    assert gone.pk not in indexed()
    assert ScheduledText.objects.get(pk=late.pk).check_at > NOW
    assert found(topology, gone.message_id + '"')[0] == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM analytics_scheduledtext")
        assert cursor.fetchone()[0] == len(many) - 1


def test_a_message_that_is_deleted_takes_its_text_along(
    topology: Topology, many: list[ScheduledMessage]
) -> None:
    row = many[-1]
    ScheduledMessage.objects.filter(pk=row.pk).delete()
    assert row.pk not in indexed()
    assert found(topology, row.message_id) == ([], "")


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
