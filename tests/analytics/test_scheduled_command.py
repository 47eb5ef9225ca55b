from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from analytics.models import Gap, Recording
from analytics.scheduled import projection
from analytics.scheduled.pages.export import FIELDS
from tests.analytics.builders import an_entry, ms
from topology.models import State, Topology

NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=1)


def run(*words: str) -> tuple[list[str], str]:
    """What it said on stdout, by lines, and on stderr."""
    out, err = StringIO(), StringIO()
    call_command("scheduled", *words, stdout=out, stderr=err)
    return out.getvalue().splitlines(), err.getvalue()


def read(*words: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages and the summary of --json."""
    *messages, summary = [json.loads(line) for line in run("--json", *words)[0]]
    return messages, summary


@pytest.fixture
def waiting(topology: Topology) -> Topology:
    entries = [
        an_entry("m1", NOW - ms(60_000)),
        an_entry("m2", LATER, destination="parked_messages"),
    ]
    projection.project(topology, entries)
    return topology


def test_a_person_gets_a_table(waiting: Topology) -> None:
    head, first, second = run()[0]
    columns = ["due", "state", "overdue", "by", "destination", "topology", "delay", "message"]
    assert head.split() == columns
    assert first.split()[-4:] == ["orders", "orders", "5s", "m1"]
    assert second.endswith("m2")


def test_a_program_gets_a_line_for_each_message_and_a_summary(waiting: Topology) -> None:
    messages, summary = read()
    assert [message["message_id"] for message in messages] == ["m1", "m2"]
    assert all(tuple(message) == ("kind", *FIELDS) for message in messages)
    assert messages[0]["overdue_ms"] >= 55_000
    assert messages[1]["overdue_ms"] is None
    assert messages[1]["remaining_hops"] == 1
    assert summary == {
        "kind": "summary",
        "waiting": 2,
        "overdue": 1,
        "stuck": 0,
        "matching": 2,
        "counted_to": 100_000,
        "incomplete": [],
    }


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--destination", "parked_messages"], ["m2"]),
        (["--overdue"], ["m1"]),
        (["--from", "now"], ["m2"]),
        (["--until", "now"], ["m1"]),
        (["--text", "M2"], ["m2"]),
        (["--limit", "1"], ["m1"]),
        (["--topology", "orders"], ["m1", "m2"]),
    ],
)
def test_every_option_leaves_what_it_says(
    waiting: Topology, words: list[str], found: list[str]
) -> None:
    assert [message["message_id"] for message in read(*words)[0]] == found


def test_what_may_be_missing_is_said_to_both(waiting: Topology) -> None:
    Topology.objects.update(state=State.APPLIED, params=waiting.params | {"delay": "2h"})
    Recording.objects.create(topology=waiting, read_at=datetime.now(UTC))
    Gap.objects.create(
        topology=waiting, from_at=NOW - timedelta(hours=1), until_at=NOW, why="The tap was full."
    )
    lines, said = run("--json")
    assert "orders: The list is incomplete since" in said
    assert "The tap was full." in said
    (doubt,) = json.loads(lines[-1])["incomplete"]
    assert doubt["topology"] == "orders"
    assert doubt["why"][0].startswith("The tap was full.")
    assert doubt["difference"] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--from", "soon"], "--from: “soon” is not a time."),
        (
            ["--topology", "nowhere"],
            "The topology “nowhere” does not exist. Existing topologies: orders.",
        ),
    ],
)
def test_bad_input_gets_a_sentence(waiting: Topology, words: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        run(*words)


def test_a_terminal_is_sent_nothing_that_it_would_obey(topology: Topology) -> None:
    projection.project(topology, [an_entry("m1\x1b[2J", LATER, destination="x" * 100)])
    text = "\n".join(run()[0])
    assert "\x1b" not in text
    assert "x" * 61 not in text
