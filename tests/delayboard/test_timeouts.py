"""Lines of an import of timeouts: what they mean, what becomes of them, what a second run adds."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import time_machine
from django.core.management import CommandError, call_command
from pytest_django import Settings

from analytics.models import Fact
from delayboard.models import ImportedTimeout
from delayboard.publishing import destinations, timeouts
from delayboard.publishing import import_timeouts as importing
from delayboard.publishing.import_timeouts import import_timeouts, try_import
from delayboard.publishing.timeout_desk import Verdict
from delayboard.publishing.timeouts import Malformed, numbered_lines, read_line
from tests.topology.builders import NOON, a_queue, a_snapshot
from topology.broker.errors import (
    BrokerError,
    Nacked,
    NotFound,
    OutcomeUnknown,
    Unreachable,
)
from topology.definitions import Binding, Definitions, Exchange, Thing
from topology.message import PUBLISHED_AT_HEADER, TRACKING_HEADER, Publish, Route
from topology.models import AuditEntry, Broker, State, Topology
from topology.patterns import delay_levels
from topology.provision import Refusal, create_topology

LEVELS = delay_levels.Params("own", "shop", 8)
LONGEST = timedelta(seconds=255)
SOME_ID = UUID(int=7)


def a_line(destination: str = "orders", due: timedelta = LONGEST / 2, **values: Any) -> bytes:
    stated = {"destination": destination, "due_at": (NOON + due).isoformat(), "body": "{}"}
    return json.dumps({**stated, **values}).encode()


def text(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()


def test_a_line_says_where_when_and_what() -> None:
    read = read_line(
        text(
            {
                "destination": "Retail.Sales",
                "due_at": "2027-01-31T09:00:00.1234567+01:00",
                "body_base64": "AP8=",
                "headers": {"tenant": 4, "nested": {"a": [1, None]}},
                "correlation_id": "c",
                "priority": 3,
                "reply_to": None,
            }
        )
    )
    assert read.destination == "Retail.Sales"
    assert read.due_at == datetime(2027, 1, 31, 8, 0, 0, 123456, tzinfo=UTC)
    assert read.body == b"\x00\xff"
    assert read.headers == {"tenant": 4, "nested": {"a": [1, None]}}
    assert read.properties == {"correlation_id": "c", "priority": 3}
    ms = read_line(text({"destination": "a", "due_at_ms": 1_000_500, "body": "é"}))
    assert (ms.due_at.timestamp(), ms.body) == (1000.5, "é".encode())


def test_what_nservicebus_keeps_in_headers_becomes_properties_too() -> None:
    headers = {
        "NServiceBus.MessageId": "m1",
        "NServiceBus.ContentType": "text/json",
        "NServiceBus.CorrelationId": "c1",
    }
    assert read_line(a_line(headers=headers)).properties == {
        "message_id": "m1",
        "content_type": "text/json",
        "correlation_id": "c1",
    }
    assert read_line(a_line(headers=headers, message_id="own")).properties["message_id"] == "own"


@pytest.mark.parametrize("empty", ["", "   "])
def test_an_empty_text_states_nothing_in_a_field_or_a_header(empty: str) -> None:
    headers = {"NServiceBus.MessageId": empty, "NServiceBus.ContentType": "text/json"}
    read = read_line(a_line(headers=headers, message_id=empty, content_type=empty, reply_to=empty))
    assert read.properties == {"content_type": "text/json"}
    assert read.message_id == ""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\xff{}", "not UTF-8"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"7", "no JSON object"),
        (a_line(due_ta=1), "unknown field “due_ta”"),
        (a_line(expiration="5"), "unknown field “expiration”"),
        (a_line(destination=""), "no “destination”"),
        (text({"destination": 5}), "no “destination”"),
        (a_line(destination="\ud800"), "none in Unicode"),
        (a_line(due_at=None), "either “due_at” or “due_at_ms”"),
        (a_line(due_at_ms=5), "either “due_at” or “due_at_ms”"),
        (a_line(due_at="2027-01-31T08:00:00"), "no time zone"),
        (a_line(due_at="tomorrow"), "no moment"),
        (a_line(due_at=5), "no moment"),
        (a_line(due_at="0001-01-01T00:00:00+14:00"), "no moment"),
        (a_line(due_at=None, due_at_ms=True), "no whole number"),
        (a_line(due_at=None, due_at_ms=10**20), "no moment"),
        (a_line(body=None), "either “body” or “body_base64”"),
        (a_line(body_base64=""), "either “body” or “body_base64”"),
        (a_line(body={"a": 1}), "no text"),
        (a_line(body="\ud800"), "none in Unicode"),
        (a_line(body=None, body_base64="A"), "no Base64"),
        (a_line(body=None, body_base64=1234), "no text"),
        (a_line(headers=[]), "no JSON object"),
        (a_line(message_id=5), "“message_id” is no text"),
        (a_line(priority="high"), "“priority” is no whole number"),
    ],
)
def test_a_malformed_line_says_why(line: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_line(line)


def test_lines_are_numbered_blank_ones_and_a_byte_order_mark_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "LONGEST_LINE", 10)
    long = b"x" * 35
    stream = io.BytesIO(b"\xef\xbb\xbffirst\r\n\n  \n" + long + b"\nlast")
    first, cut, last = numbered_lines(stream)
    assert (first, last) == ((1, b"first"), (5, b"last"))
    assert cut[0] == 4
    with pytest.raises(Malformed, match="more than"):
        read_line(cut[1])


def published(params: delay_levels.Params, line: bytes, now: datetime = NOON) -> Publish:
    timeout = read_line(line)
    route = timeouts.route_at(params, timeout, now)
    return timeouts.publish_at(params, timeout, route, SOME_ID, now)


def test_what_a_former_way_through_a_broker_left_on_a_message_does_not_come_in() -> None:
    headers = {"x-death": [{"queue": "a", "count": 3}], "CC": ["b"], "tenant": 4, "x-mine": "y"}
    message = published(LEVELS, a_line(headers=headers, type="t"))
    assert message.properties.headers == {
        "tenant": 4,
        "x-mine": "y",
        TRACKING_HEADER: str(SOME_ID),
        PUBLISHED_AT_HEADER: int(NOON.timestamp() * 1000),
    }
    stated = message.properties.stated()
    assert stated == {"delivery_mode": 2, "message_id": str(SOME_ID), "type": "t"}


def test_what_is_left_is_rounded_up_to_steps_and_what_is_due_goes_at_once() -> None:
    for due, seconds in ((timedelta(seconds=4.2), 5), (timedelta(0), 0), (-LONGEST, 0)):
        message = published(LEVELS, a_line(due=due))
        bits, target = delay_levels.split_key(LEVELS, message.routing_key)
        assert (int(bits, 2), target) == (seconds, "orders")


def test_particular_s_own_tools_add_up_the_same_due_time() -> None:
    """`delays transfer` takes TimeSent plus DelayInSeconds (nservicebus.md §2)."""
    name = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
    sent = {"NServiceBus.TimeSent": "2026-11-20 11:59:00:000000 Z"}
    nsb, due = delay_levels.Params("nsb-v2"), timedelta(seconds=10)
    assert published(nsb, a_line(due=due, headers=sent)).properties.headers[name] == 70
    assert published(nsb, a_line(due=due)).properties.headers[name] == 10
    assert name not in published(LEVELS, a_line(due=due)).properties.headers


def test_a_line_is_known_by_its_message_id_and_destination_or_by_itself() -> None:
    def key(line: bytes, name: str = "a.jsonl", nth: int = 0) -> str:
        return timeouts.line_key(read_line(line), name, timeouts.line_digest(line), nth)

    named = a_line(message_id="m")
    assert key(named) == key(a_line(message_id="m", due=LONGEST), "b.jsonl", 1)
    assert key(named) != key(a_line("other", message_id="m"))
    plain = a_line()
    assert len({key(plain), key(plain, "b.jsonl"), key(plain, nth=1), key(named)}) == 4


class Channel:
    """A publisher that keeps what it is given, or fails for a destination."""

    def __init__(self) -> None:
        self.seen = a_snapshot(standing())
        self.errors: dict[str, BrokerError] = {}
        self.published: list[Publish] = []
        self.declared: list[Thing] = []

    def publish_by(self, route: Route, publish: Publish, declared: Callable[[], None]) -> None:
        (binding,) = route.declares.bindings
        error = self.errors.get(binding.destination)
        if isinstance(error, NotFound):
            raise error
        self.declared.append(binding)
        self.seen = a_snapshot(self.seen.definitions | route.declares)
        declared()
        if error:
            raise error
        self.published.append(publish)

    @property
    def targets(self) -> list[str]:
        keys = (publish.routing_key for publish in self.published)
        return [delay_levels.split_key(LEVELS, key)[1] for key in keys]


def standing(*more: Thing) -> Definitions:
    """The levels with the queues orders and sales; orders is bound."""
    bound = delay_levels.route(LEVELS, LONGEST, "orders").declares
    queues = Definitions.of([a_queue("orders"), a_queue("Retail.sales"), a_queue("sales"), *more])
    return delay_levels.definitions(LEVELS) | queues | bound


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    kept = Channel()

    @contextmanager
    def publisher(*args: Any, **kwargs: Any) -> Iterator[Channel]:
        yield kept

    monkeypatch.setattr(importing, "publisher", publisher)
    monkeypatch.setattr(destinations, "observe", lambda management: kept.seen)
    return kept


@pytest.fixture
def levels(broker: Broker, settings: Settings, tmp_path: Path) -> Topology:
    settings.VAR = tmp_path
    topology = create_topology(None, broker, delay_levels.KIND, LEVELS)
    topology.state = State.APPLIED
    topology.save()
    return topology


@pytest.fixture
def noon() -> Iterator[None]:
    with time_machine.travel(NOON, tick=False):
        yield


def numbered(*lines: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(lines, start=1))


LINES = numbered(
    a_line(message_id="m1"),
    a_line(due=-LONGEST),
    a_line(due=2 * LONGEST),
    b"no json",
    a_line("nobody"),
    a_line("sales"),
    a_line("Retail.sales"),
    a_line(message_id="m1"),
    a_line(headers={"n" * 300: 1}),
    a_line("o" * 250),
)
BECOME = [
    ("waits", "waits 2m7s."),
    ("due", "due 4m15s ago, at once."),
    ("refused", "The longest delay of these levels is 4m15s."),
    ("malformed", "It is no JSON"),
    ("refused", "There is no queue nobody"),
    ("waits", "waits 2m7s."),
    ("refused", "The destination “sales” is its dotted end"),
    ("refused", "Line 1 has the same message id and destination."),
    ("refused", "more than 255 bytes"),
    ("refused", "has at most 239 bytes"),
]


def check(verdicts: list[Verdict]) -> None:
    assert [verdict.mark for verdict in verdicts] == [mark for mark, _ in BECOME]
    for verdict, (_, sentence) in zip(verdicts, BECOME, strict=True):
        assert sentence in verdict.sentence


@pytest.mark.usefixtures("noon")
def test_a_dry_run_judges_each_line_and_changes_nothing(channel: Channel, levels: Topology) -> None:
    verdicts: list[Verdict] = []
    tally = try_import(levels, "file", LINES, verdicts.append)
    check(verdicts)
    assert (tally.published, tally.left_out, tally.unbound) == (3, 7, {"sales"})
    assert tally.destinations["orders"] == {"waits": 1, "due": 1, "refused": 3}
    assert (channel.published, channel.declared) == ([], [])
    assert not ImportedTimeout.objects.exists()
    assert not Fact.objects.exists()
    assert not AuditEntry.objects.filter(action="timeouts imported").exists()
    levels.refresh_from_db()
    assert not levels.owned


@pytest.mark.usefixtures("noon")
def test_a_run_does_what_the_dry_run_said_and_a_second_one_adds_nothing(
    channel: Channel, levels: Topology
) -> None:
    verdicts: list[Verdict] = []
    import_timeouts(levels, "file", LINES, verdicts.append)
    check(verdicts)
    assert channel.targets == ["orders", "orders", "sales"]
    assert Fact.objects.count() == 3
    rows = {str(row.tracking_id) for row in ImportedTimeout.objects.exclude(published_at=None)}
    assert {p.properties.headers[TRACKING_HEADER] for p in channel.published} == rows
    levels.refresh_from_db()
    bound = Binding("shop.delay-delivery", "sales", "#.sales")
    assert levels.owned_identities == {bound.identity}
    entry = AuditEntry.objects.get(action="timeouts imported")
    assert entry.details["lines"] == {"waits": 2, "due": 1, "refused": 6, "malformed": 1}
    again = import_timeouts(levels, "file", LINES, verdicts.append)
    assert (again.published, again.marks["known"], len(channel.published)) == (0, 3, 3)


def test_equal_lines_without_an_id_are_as_many_messages(channel: Channel, levels: Topology) -> None:
    lines = numbered(a_line(), a_line(), a_line())
    import_timeouts(levels, "file", lines[:2], lambda verdict: None)
    import_timeouts(levels, "file", lines, lambda verdict: None)
    assert len(channel.published) == 3


@pytest.mark.parametrize(
    "empty",
    [{"message_id": ""}, {"message_id": "  "}, {"headers": {"NServiceBus.MessageId": ""}}],
)
@pytest.mark.usefixtures("noon")
def test_an_empty_message_id_is_none_and_leaves_no_line_out(
    channel: Channel, levels: Topology, empty: dict[str, Any]
) -> None:
    verdicts: list[Verdict] = []
    first = numbered(a_line(body="1", **empty), a_line("sales", body="2", **empty))
    import_timeouts(levels, "file", first, verdicts.append)
    later = numbered(a_line(body="3", due=LONGEST, **empty), first[0][1])
    import_timeouts(levels, "file", later, verdicts.append)
    assert [verdict.mark for verdict in verdicts] == ["waits", "waits", "waits", "known"]
    assert [publish.body for publish in channel.published] == [b"1", b"2", b"3"]
    ids = [publish.properties.message_id for publish in channel.published]
    assert ids == [publish.properties.headers[TRACKING_HEADER] for publish in channel.published]


@pytest.mark.parametrize(
    "values",
    [
        {"message_id": "\ud800"},
        {"reply_to": "\udc00"},
        {"headers": {"\ud800": 1}},
        {"headers": {"nested": {"a": ["\ud800"]}}},
        {"headers": {"NServiceBus.MessageId": "\ud800", "NServiceBus.TimeSent": "\ud800"}},
    ],
)
def test_half_of_a_surrogate_pair_refuses_its_line_alone(
    channel: Channel, levels: Topology, values: dict[str, Any]
) -> None:
    verdicts: list[Verdict] = []
    import_timeouts(levels, "file", numbered(a_line(**values), a_line()), verdicts.append)
    assert [verdict.mark for verdict in verdicts] == ["refused", "due"]
    assert "\\ud" in verdicts[0].sentence
    assert "none in Unicode" in verdicts[0].sentence


@pytest.mark.parametrize("error", [Nacked("full"), NotFound("no queue")])
def test_a_line_that_the_broker_refuses_is_told_and_tried_again_by_the_next_run(
    channel: Channel, levels: Topology, error: BrokerError
) -> None:
    channel.errors["sales"] = error
    lines = numbered(a_line("sales"), a_line())
    tally = import_timeouts(levels, "file", lines, lambda verdict: None)
    assert (tally.published, tally.marks["refused"], channel.targets) == (1, 1, ["orders"])
    levels.refresh_from_db()
    assert bool(levels.owned) == isinstance(error, Nacked)
    channel.errors.clear()
    tally = import_timeouts(levels, "file", lines, lambda verdict: None)
    assert (tally.published, tally.doubled, channel.targets) == (1, 0, ["orders", "sales"])


def test_a_line_whose_outcome_is_not_known_ends_the_run_and_may_be_doubled_by_the_next(
    channel: Channel, levels: Topology
) -> None:
    lines = numbered(a_line(), a_line("sales"), a_line(due=LONGEST / 3))
    channel.errors["sales"] = OutcomeUnknown("It broke.")
    tally = import_timeouts(levels, "file", lines, lambda verdict: None)
    assert (tally.published, tally.stopped) == (1, "Stopped at line 2: It broke.")
    entry = AuditEntry.objects.get(action="timeouts imported")
    assert entry.outcome == tally.stopped
    channel.errors.clear()
    verdicts: list[Verdict] = []
    tally = import_timeouts(levels, "file", lines, verdicts.append)
    assert [verdict.may_be_doubled for verdict in verdicts] == [False, True, False]
    assert "may be doubled" in verdicts[1].sentence
    assert ImportedTimeout.objects.get(may_be_doubled=True).destination == "sales"
    assert channel.targets == ["orders", "sales", "orders"]


def test_a_broker_that_is_gone_leaves_no_line_half_done(channel: Channel, levels: Topology) -> None:
    channel.errors["orders"] = Unreachable("Gone.")
    tally = import_timeouts(levels, "file", numbered(a_line(), a_line()), lambda verdict: None)
    assert (tally.published, tally.stopped) == (0, "Stopped at line 1: Gone.")
    assert not ImportedTimeout.objects.exists()


@pytest.mark.usefixtures("channel")
def test_a_destination_that_another_bound_meanwhile_is_looked_at_anew(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Binding("shop.delay-delivery", "sales", "#.sales")
    views = iter([a_snapshot(standing()), a_snapshot(standing(others))])
    monkeypatch.setattr(destinations, "observe", lambda management: next(views))
    verdicts: list[Verdict] = []
    import_timeouts(levels, "file", numbered(a_line("Retail.sales")), verdicts.append)
    assert [verdict.mark for verdict in verdicts] == ["refused"]
    assert "is its dotted end" in verdicts[0].sentence
    assert channel.published == []
    assert not ImportedTimeout.objects.exists()


def test_levels_that_fall_meanwhile_end_the_run(channel: Channel, levels: Topology) -> None:
    def fall(verdict: Verdict) -> None:
        channel.seen = a_snapshot(standing().without([("queue", "shop.delay-level-03")]))

    tally = import_timeouts(levels, "file", numbered(a_line(), a_line("sales")), fall)
    assert (tally.published, tally.stopped[:27]) == (1, "Stopped at line 2: The leve")
    assert ImportedTimeout.objects.count() == 1


def test_a_broker_with_an_alarm_is_given_nothing(channel: Channel, levels: Topology) -> None:
    """It would take the message when the alarm ends, and nobody would know."""
    channel.seen = replace(channel.seen, alarms=("memory on rabbit@host",))
    tally = import_timeouts(levels, "file", numbered(a_line()), lambda verdict: None)
    assert "alarm (memory on rabbit@host)" in tally.stopped
    assert not ImportedTimeout.objects.exists()


@pytest.mark.usefixtures("noon")
def test_an_interrupted_run_is_in_the_audit_log(channel: Channel, levels: Topology) -> None:
    def interrupt(verdict: Verdict) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_timeouts(levels, "file", numbered(a_line()), interrupt)
    entry = AuditEntry.objects.get(action="timeouts imported")
    assert (entry.outcome, entry.details["lines"]) == ("It was interrupted.", {"waits": 1})
    assert len(channel.published) == 1


def test_only_applied_levels_take_an_import_and_only_one_at_a_time(
    levels: Topology, pair: Topology
) -> None:
    def bring(topology: Topology) -> None:
        import_timeouts(topology, "file", numbered(a_line()), lambda verdict: None)

    with pytest.raises(Refusal, match="no delay levels"):
        bring(pair)
    with importing._alone_with(levels), pytest.raises(Refusal, match="Another import"):
        bring(levels)
    Topology.objects.filter(pk=levels.pk).update(state=State.TORN_DOWN)
    levels.refresh_from_db()
    with pytest.raises(Refusal, match="torn down: apply it first"):
        bring(levels)


def test_levels_that_do_not_stand_take_nothing(channel: Channel, levels: Topology) -> None:
    channel.seen = a_snapshot(standing().without([("queue", "shop.delay-level-03")]))
    with pytest.raises(Refusal, match=r"There is no quorum queue shop\.delay-level-03"):
        try_import(levels, "file", numbered(a_line()), lambda verdict: None)


def test_an_exchange_behind_which_nothing_is_bound_is_no_destination() -> None:
    params = delay_levels.Params("own", "shop", 8, destinations="exchanges")
    bare = Definitions.of([Exchange("endpoint", "fanout"), a_queue("work")])
    found = delay_levels.definitions(params) | bare
    problem = destinations.destination_problem(params, "endpoint", a_snapshot(found))
    assert problem.startswith("No queue would take it when it is due")
    found |= Definitions.of([Binding("endpoint", "work", "")])
    assert not destinations.destination_problem(params, "endpoint", a_snapshot(found))


def test_the_command_tells_with_numbers_and_its_exit_code(
    channel: Channel, levels: Topology, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "timeouts.jsonl"
    soon = (datetime.now(UTC) + LONGEST / 2).isoformat()
    good = text({"destination": "sales", "due_at": soon, "body": "", "message_id": "m"})
    file.write_bytes(good)
    call_command("import_timeouts", levels.slug, str(file), "--dry-run")
    told = capsys.readouterr().out
    assert "line 1 for “sales”: waits 2m" in told
    assert "1 lines: 1 would be published, 0 of them due already" in told
    assert "sales (would be bound): 1 waits" in told
    file.write_bytes(b"no json\n" + good)
    with pytest.raises(SystemExit) as ended:
        call_command("import_timeouts", levels.slug, str(file), "--rate", "1000")
    assert ended.value.code == 3
    told_, errors = capsys.readouterr()
    assert "line 1: malformed: It is no JSON" in errors
    assert "2 lines: 1 published" in told_
    file.write_bytes(good)
    call_command("import_timeouts", levels.slug, str(file))
    assert "1 published before" in capsys.readouterr().out
    channel.errors["sales"] = Unreachable("Gone.")
    file.write_bytes(good.replace(b'"m"', b'"n"'))
    for arguments, why in (
        ([levels.slug, str(file)], "Stopped at line 1: Gone"),
        (["nothing", str(file)], f"Known delay levels: {levels.slug}"),
        ([levels.slug, str(tmp_path / "none")], "cannot be read"),
        ([levels.slug, str(file), "--rate", "0"], "more than 0"),
    ):
        with pytest.raises(CommandError, match=why) as refused:
            call_command("import_timeouts", *arguments)
        assert refused.value.returncode == 1


def test_the_examples_of_the_document_can_be_read() -> None:
    document = Path(__file__).resolve().parents[2] / "docs" / "timeouts.md"
    examples = [line for line in document.read_bytes().splitlines() if line.startswith(b"{")]
    read = [read_line(line) for line in examples]
    assert [timeout.destination for timeout in read] == [
        "Retail.Sales",
        "Retail.Sales",
        "Retail.Billing",
        "reminders",
    ]
    assert all("message_id" in timeout.properties for timeout in read)
