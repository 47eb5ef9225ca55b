from __future__ import annotations

import csv
import io
import json
import struct
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError
from hypothesis import given
from hypothesis import strategies as st

from analytics.views import streaming
from delayboard.dead_letters import discard, export_messages
from delayboard.dead_letters import import_messages as bringing
from delayboard.dead_letters.import_messages import LineError, import_messages, read_line
from delayboard.dead_letters.parked import store
from delayboard.dead_letters.parked.store import change_parked_messages
from delayboard.dead_letters.search import matching
from delayboard.models import MessageGroup, ParkedMessage, ParkedState
from tests.builders import make_broker
from tests.commands import run
from tests.delayboard.builders import a_message, parked
from tests.topology.builders import NOON
from topology.broker.properties.read import read_properties
from topology.content.export_format import csv_line
from topology.message import Message
from topology.models import AuditEntry, Broker
from topology.redaction import NOTHING, Redaction

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

# A timestamp past the year 9999, a decimal, a byte string and a small integer.
ODD = (
    b"\x20\x00"
    + struct.pack(">I", 34)
    + (
        b"\x01tT\xff\xff\xff\xff\xff\xff\xff\xff"
        b"\x01dD\x01\x00\x00\x00\x0f"
        b"\x01xx\x00\x00\x00\x02\xff\x00"
        b"\x01bb\x07"
    )
)


def odd_messages() -> list[Message]:
    return [
        a_message(b'{"a": 1}', message_id="one", content_type="application/json"),
        Message("orders", "k" * 255, read_properties(ODD), b"\xff\x00\xfe", redelivered=True),
        Message("", "größe\u202e<script>", read_properties(b"\x00\x00"), b""),
        a_message("=1+1 “text”\n\t\u2028".encode(), {"n": {"deep": [1, "two", None]}}),
        a_message(bytes(range(256)) * 4000),
        Message("", "torn", read_properties(b"\xff"), b"x"),
    ]


def lines_of(broker: Broker, query: str = "", hidden: Redaction = NOTHING) -> list[bytes]:
    return list(export_messages.write_messages("jsonl", matching(None, broker, query), hidden))


def content(broker: Broker) -> list[tuple[Any, ...]]:
    rows = ParkedMessage.objects.filter(broker=broker).order_by("pk")
    return [
        (
            row.message.exchange,
            row.message.routing_key,
            row.message.properties.raw,
            row.message.body,
            row.redelivered,
            row.content_id,
            row.message_id,
            row.queue,
            row.state,
            row.deaths,
            row.died_at,
            row.parked_at,
            row.group.fingerprint,
        )
        for row in rows
    ]


@pytest.fixture
def other() -> Broker:
    return make_broker(name="Other")


def test_what_is_exported_and_imported_is_the_same_message(broker: Broker, other: Broker) -> None:
    parked_messages = parked(broker, *odd_messages())
    discard.change_these(None, broker, discard.DISCARD, [parked_messages[1].pk])
    before = content(broker)
    tally = import_messages(None, other, "file", lines_of(broker, "state:any")[::-1])
    assert (tally.lines, tally.added, tally.known, tally.malformed) == (6, 6, 0, 0), tally.wrong
    assert content(other) == before
    assert sum(MessageGroup.objects.filter(broker=other).values_list("parked", flat=True)) == 5
    assert sum(MessageGroup.objects.filter(broker=other).values_list("discarded", flat=True)) == 1


def test_what_was_in_a_replay_is_parked_where_it_is_imported_and_the_rest_as_it_was(
    broker: Broker, other: Broker
) -> None:
    parked_messages = parked(broker, *(a_message(b"%d" % number) for number in range(5)))
    for parked_message, state in zip(parked_messages, ParkedState, strict=True):
        change_parked_messages([parked_message.pk], (ParkedState.PARKED,), state, by=None, at=NOON)
    import_messages(None, other, "file", lines_of(broker, "state:any")[::-1])
    states = (
        ParkedMessage.objects.filter(broker=other).order_by("pk").values_list("state", flat=True)
    )
    assert list(states) == ["parked", "discarded", "parked", "parked", "replayed"]
    group = MessageGroup.objects.get(broker=other)
    assert (group.parked, group.discarded, group.replayed) == (3, 1, 1)
    assert import_messages(None, other, "file", lines_of(broker, "state:any")).added == 0


def test_importing_twice_adds_nothing_wherever_it_came_from(broker: Broker, other: Broker) -> None:
    parked(broker, *odd_messages())
    lines = lines_of(broker)
    here = import_messages(None, broker, "file", lines)
    assert (here.added, here.known) == (0, 6)
    first, again = (
        import_messages(None, other, "file", lines),
        import_messages(None, other, "file", lines),
    )
    assert (first.added, again.added, again.known) == (6, 0, 6)
    back = import_messages(None, broker, "back", lines_of(other))
    assert (back.added, back.known) == (0, 6)
    doubled = import_messages(None, make_broker(name="Third"), "file", [*lines, *lines])
    assert (doubled.added, doubled.known) == (6, 6)


def test_two_equal_messages_are_both_exported_and_both_imported(
    broker: Broker, other: Broker
) -> None:
    parked(broker, a_message(b"same"), a_message(b"same"))
    assert import_messages(None, other, "file", lines_of(broker)).added == 2


def test_an_import_goes_on_after_it_was_killed(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "CHUNK", 2)
    parked(broker, *odd_messages())
    lines = lines_of(broker)

    def torn() -> Iterator[bytes]:
        yield from lines[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_messages(None, other, "file", torn())
    assert ParkedMessage.objects.filter(broker=other).count() == 4
    assert import_messages(None, other, "file", lines).added == 2


def a_line(broker: Broker, **changes: Any) -> bytes:
    (parked_message,) = parked(broker, a_message(b"body"))
    reported = export_messages.make_record(parked_message, b"body", NOTHING) | changes
    return json.dumps({name: v for name, v in reported.items() if v is not ...}).encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "other"}, "not an exported dead letter"),
        ({"v": 2}, "version"),
        ({"masked": True}, "incomplete"),
        ({"masked": ...}, "incomplete"),
        ({"body_text": "other"}, "was changed"),
        ({"body_text": 5}, "not a text"),
        ({"body_text": ...}, "one of body_text"),
        ({"body_base64": "AA=="}, "one of body_text"),
        ({"properties_base64": "!"}, "not valid base64"),
        ({"properties_base64": "ü"}, "not valid base64"),
        ({"properties_base64": ...}, "no properties_base64"),
        ({"properties_base64": b64encode(bytes(1_000_001)).decode()}, "larger than an AMQP frame"),
        ({"queue": ""}, "no queue"),
        ({"queue": "q" * 256}, "255 bytes"),
        ({"exchange": ["x"]}, "exchange is not a text"),
        ({"parked_at": "soon"}, "not a valid time"),
        ({"parked_at": None}, "not a valid time"),
        ({"parked_at": "0001-01-01T00:00:00Z"}, "year 1000"),
        ({"parked_at": "0001-01-01T00:00:00+14:00"}, "not a valid time"),
        ({"state": "lost"}, "state"),
        ({"state": {}}, "state"),
        ({"uid": 7}, "uid"),
        ({"uid": "x" * 65}, "uid"),
        ({"uid": "a\x00b"}, "not printable"),
    ],
)
def test_a_malformed_line_is_counted_told_and_stops_nothing(
    broker: Broker, other: Broker, changes: dict[str, Any], said: str
) -> None:
    good = a_line(broker)
    reported: list[tuple[int, str]] = []
    lines = [a_line(broker, **changes), b"\n", b"{", b"[1]", good]
    tally = import_messages(None, other, "file", lines, lambda *one: reported.append(one))
    assert (tally.lines, tally.added, tally.malformed) == (4, 1, 3)
    assert tally.wrong == reported
    assert [number for number, _ in reported] == [1, 3, 4]
    assert said in reported[0][1]


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b"\xff\xfe", b'{"a":"\\ud800"}', b"null", b'{"kind":"dead-letter"}', b"\x00"],
)
def test_no_line_is_an_error_of_ours(line: bytes) -> None:
    with pytest.raises(LineError):
        read_line(line)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "v",
                "kind",
                "uid",
                "queue",
                "exchange",
                "group",
                "properties_base64",
                "body_text",
                "parked_at",
                "state",
                "masked",
                "content_id",
            ]
        ),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.text(),
            st.lists(st.text()),
            st.just("dead-letter"),
            st.just(1),
            st.just("2026-11-21T00:00:00Z"),
        ),
    )
)
def test_no_object_is_an_error_of_ours(reported: dict[str, Any]) -> None:
    with suppress(LineError):
        read_line(json.dumps(reported).encode())


def test_what_people_wrote_on_a_group_comes_along_but_no_address_to_run(
    broker: Broker, other: Broker
) -> None:
    parked(broker, a_message(b"1"))
    MessageGroup.objects.update(note="call Ann", link="https://wiki/1")
    import_messages(
        None, other, "file", [line.replace(b"Ann", b"Ann\\u0000") for line in lines_of(broker)]
    )
    row = MessageGroup.objects.get(broker=other)
    assert (row.note, row.link) == ("call Ann\\x00", "https://wiki/1")
    third = make_broker(name="Third")
    MessageGroup.objects.filter(broker=broker).update(link="javascript:alert(1)")
    import_messages(None, third, "file", lines_of(broker))
    assert MessageGroup.objects.get(broker=third).link == ""


def test_a_masked_export_says_so_and_has_nothing_of_what_is_hidden(broker: Broker) -> None:
    parked(broker, a_message(b'{"card": "4711-secret", "n": 1}', {"token": "secret", "t": "ok"}))
    hidden = Redaction(("token",), ("card",))
    (line,) = lines_of(broker, hidden=hidden)
    reported = json.loads(line)
    assert reported["masked"] is True
    assert "properties_base64" not in reported
    assert b"secret" not in line
    assert reported["headers"]["t"] == "ok"
    _, row = export_messages.write_messages("csv", matching(None, broker, ""), hidden)
    assert b"secret" not in row
    with pytest.raises(LineError, match="incomplete"):
        read_line(line)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n=1"])
def test_no_cell_is_a_formula(broker: Broker, text: str) -> None:
    parked(broker, a_message(text.encode(), {}, message_id=text))
    head, row = export_messages.write_messages("csv", matching(None, broker, ""), NOTHING)
    names = next(csv.reader(io.StringIO(head.decode(), newline="")))
    cells = dict(zip(names, next(csv.reader(io.StringIO(row.decode(), newline=""))), strict=True))
    assert cells["body"] == f"'{text}"
    assert cells["message_id"] == f"'{text}"
    assert cells["queue"] == "dead"


def test_large_bodies_are_not_read_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_messages, "CHUNK_BYTES", 100)
    monkeypatch.setattr(export_messages, "CHUNK", 4)
    parked(broker, *[a_message(bytes([65 + place]) * 60) for place in range(9)])
    read = [body[:1] for _, body in export_messages.read_messages(matching(None, broker, ""))]
    assert read == [bytes([65 + place]) for place in range(9)][::-1]
    sizes = [[row.size for row in piece] for piece in export_messages._pieces(list(_rows()))]
    assert all(len(piece) == 1 for piece in sizes)


def _rows() -> Iterator[ParkedMessage]:
    yield from ParkedMessage.objects.all()


def test_the_parts_that_are_sent_are_the_lines() -> None:
    lines = [b"x" * 40_000] * 5 + [b"end"]
    parts = list(streaming.gathered(iter(lines)))
    assert b"".join(parts) == b"".join(lines)
    assert [len(part) for part in parts] == [80_000, 80_000, 40_003]


def test_the_commands_move_parked_messages(
    broker: Broker, other: Broker, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    parked(broker, *odd_messages(), at=NOON - timedelta(days=1))
    call_command("export_dead_letters", broker.slug)
    written = capfdbinary.readouterr().out
    file = tmp_path / "parked_messages.jsonl"
    file.write_bytes(written)
    call_command("import_dead_letters", other.slug, str(file))
    assert sorted(content(other)) == sorted(content(broker))
    file.write_bytes(written + b"{\n")
    with pytest.raises(SystemExit) as ended:
        call_command("import_dead_letters", other.slug, str(file))
    assert ended.value.code == 3
    assert b"line 7: The line is not JSON" in capfdbinary.readouterr().err
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert actions == [
        "parked messages exported",
        "parked messages imported",
        "parked messages imported",
    ]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_an_export_of_nothing_says_so(broker: Broker, form: str) -> None:
    parked(broker, a_message(b"1"))
    assert run("export_dead_letters", broker.slug, "--q", "reason::(").code == 2
    given = ("export_dead_letters", broker.slug, f"--format={form}", "--q", "reason:typo")
    assert run(*given).err == "No parked message matches.\n"
    assert run(*given[:-2]).err == ""
    assert "not indexed yet, and may match" in run(*given[:-2], "--q", "word").err


def test_a_command_says_what_is_wrong(broker: Broker, tmp_path: Path) -> None:
    for name, values in (
        ("export_dead_letters", ["nowhere"]),
        ("export_dead_letters", [broker.slug, "--q", "foo:1"]),
        ("import_dead_letters", [broker.slug, str(tmp_path / "none")]),
    ):
        with pytest.raises(CommandError, match=r"does not exist|is unknown|cannot be read"):
            call_command(name, *values)


def test_the_file_says_who_imported(broker: Broker, other: Broker, user: User) -> None:
    parked(broker, a_message(b"1"))
    import_messages(user, other, "some.jsonl", lines_of(broker))
    entry = AuditEntry.objects.get(action="parked messages imported")
    assert (entry.username, entry.what, entry.details["added"]) == ("ann", "some.jsonl", 1)
    assert ParkedMessage.objects.get(broker=other).state == ParkedState.PARKED


@pytest.mark.parametrize(
    "version",
    [
        "x" * 100_000,
        "\ufdfa" * 100_000,
        ["x" * 1000] * 1000,
        {"v" * 1000: 1},
        1e300,
        -(2**63),
        None,
        "\x00",
    ],
)
def test_what_is_wrong_with_a_line_is_told_shortly(version: Any) -> None:
    with pytest.raises(LineError, match="version") as caught:
        read_line(json.dumps({"kind": "dead-letter", "v": version}).encode())
    assert len(str(caught.value)) < 80
    assert "\x00" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "x" * 10_000},
        {"state": ["parked"] * 1000},
        {"queue": "x" * 10_000},
        {"parked_at": "x" * 10_000},
        {"uid": "x" * 10_000},
        {"properties_base64": "=" * 10_001},
        {"body_text": 1},
        {"exchange": {"x" * 1000: 1}},
    ],
)
def test_no_sentence_on_a_line_is_long(broker: Broker, changes: dict[str, Any]) -> None:
    parked(broker, a_message(b"x"))
    (line,) = lines_of(broker)
    with pytest.raises(LineError) as caught:
        read_line(json.dumps(json.loads(line) | changes).encode())
    assert len(str(caught.value)) < 200


def test_every_cell_is_quoted() -> None:
    line = csv_line([1, "", "a;b", 'c"d', "e,f"])
    assert line == b'"1","","a;b","c""d","e,f"\r\n'


def test_a_body_that_is_deleted_meanwhile_is_written_again(
    broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked(broker, *odd_messages())
    real, torn = store.put, iter([True])

    def put(*args: Any, **values: Any) -> Any:
        rows = real(*args, **values)
        if next(torn, False):
            raise IntegrityError("FOREIGN KEY constraint failed")
        return rows

    monkeypatch.setattr(store, "put", put)
    tally = import_messages(None, other, "file", lines_of(broker))
    assert (tally.added, tally.known) == (6, 0)
    assert len(content(other)) == 6
