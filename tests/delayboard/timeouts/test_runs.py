"""What becomes of the lines of an import, tried and published, and what a second run adds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from analytics.models import Fact
from delayboard.models import ImportedTimeout
from delayboard.publishing.timeout_import.import_tally import LineResult
from delayboard.publishing.timeout_import.import_timeouts import import_timeouts, try_import
from tests.delayboard.timeouts.lines import LONGEST, Channel, a_line, numbered, text
from topology.broker.errors import Unreachable
from topology.definitions import Binding
from topology.message import TRACKING_HEADER
from topology.models import AuditEntry, Topology

pytestmark = pytest.mark.both_databases

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
    ("waits", "waits 2m 7s."),
    ("due", "due 4m 15s ago, published at once."),
    ("refused", "The longest delay of this topology is 4m 15s. Enter a shorter delay."),
    ("malformed", "The line is not JSON"),
    ("refused", "The queue nobody does not exist"),
    ("waits", "waits 2m 7s."),
    ("refused", "This destination ends with “sales”"),
    ("refused", "Line 1 has the same message id and destination."),
    ("refused", "more than 255 bytes"),
    ("refused", "has at most 239 bytes"),
]


def check(verdicts: list[LineResult]) -> None:
    assert [verdict.mark for verdict in verdicts] == [mark for mark, _ in BECOME]
    for verdict, (_, sentence) in zip(verdicts, BECOME, strict=True):
        assert sentence in verdict.sentence


@pytest.mark.usefixtures("noon")
def test_a_dry_run_judges_each_line_and_changes_nothing(channel: Channel, levels: Topology) -> None:
    verdicts: list[LineResult] = []
    tally = try_import(levels, "file", LINES, verdicts.append)
    check(verdicts)
    assert (tally.published, tally.excluded, tally.unbound) == (3, 7, {"sales"})
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
    verdicts: list[LineResult] = []
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
    verdicts: list[LineResult] = []
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
    verdicts: list[LineResult] = []
    import_timeouts(levels, "file", numbered(a_line(**values), a_line()), verdicts.append)
    assert [verdict.mark for verdict in verdicts] == ["refused", "due"]
    assert "\\ud" in verdicts[0].sentence
    assert "an invalid Unicode character" in verdicts[0].sentence


def test_the_command_tells_with_numbers_and_its_exit_code(
    channel: Channel, levels: Topology, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "timeouts.jsonl"
    soon = (datetime.now(UTC) + LONGEST / 2).isoformat()
    good = text({"destination": "sales", "due_at": soon, "body": "", "message_id": "m"})
    file.write_bytes(good)
    call_command("import_timeouts", levels.slug, str(file), "--dry-run")
    reported = capsys.readouterr().out
    assert "line 1 for “sales”: waits 2m" in reported
    assert "1 lines: 1 would be published, 0 of them due already" in reported
    assert "sales (would be bound): 1 waits" in reported
    file.write_bytes(b"no json\n" + good)
    with pytest.raises(SystemExit) as ended:
        call_command("import_timeouts", levels.slug, str(file), "--rate", "1000")
    assert ended.value.code == 3
    told_, errors = capsys.readouterr()
    assert "line 1: malformed: The line is not JSON" in errors
    assert "2 lines: 1 published" in told_
    file.write_bytes(good)
    call_command("import_timeouts", levels.slug, str(file))
    assert "1 published before" in capsys.readouterr().out
    channel.errors["sales"] = Unreachable("Gone.")
    file.write_bytes(good.replace(b'"m"', b'"n"'))
    for arguments, why, code in (
        ([levels.slug, str(file)], "Stopped at line 1: Gone", 1),
        (["nothing", str(file)], f"Existing topologies: {levels.slug}", 2),
        ([levels.slug, str(tmp_path / "none")], "cannot be read", 2),
        ([levels.slug, str(file), "--rate", "0"], "more than 0", 2),
    ):
        with pytest.raises(CommandError, match=why) as refused:
            call_command("import_timeouts", *arguments)
        assert refused.value.returncode == code
