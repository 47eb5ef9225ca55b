"""Logs of others, by the mappings that are shipped: from a file to events, and to a chart.

The files were written for these tests in the shape of each source: six messages that wait 30
seconds each, and are 120 to 370 ms late.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
from django.core.management import call_command
from django.test import Client

from analytics import launch, nightly
from analytics.events import MessageEvent
from analytics.importing.sources import find
from analytics.importing.staging import PROBLEM_MARK, Scope, event_of_line, read_lines
from analytics.mappings.mapping import load_shipped, shipped_names
from analytics.models import DayFigures
from analytics.recorder.traces import Watched
from tests.analytics.builders import NOON
from tests.analytics.warm_spark import RunModule
from topology.models import Broker, Topology

FOLDER = Path(__file__).parent / "foreign_logs"
GUIDE = Path(__file__).parents[3] / "docs/import.md"
# Of each file: its mapping, and how many events of each kind its six messages are.
PAIRS = {"scheduled": 6, "delivered": 6}
FILES: dict[str, tuple[str, dict[str, int]]] = {
    "rabbitmq-tracing.log": ("rabbitmq-tracing", PAIRS),
    "rabbitmq-tracing-text.log": ("rabbitmq-tracing-text", PAIRS),
    "rabbitmq-firehose.jsonl": ("rabbitmq-firehose", PAIRS),
    "rabbitmq-events.json": ("rabbitmq-events", {"scheduled": 6}),
    "celery-events.jsonl": ("celery-events", {**PAIRS, "died": 1}),
    "celery-task-log.jsonl": ("celery-task-log", PAIRS),
    "nservicebus-audit.jsonl": ("nservicebus-audit", {"scheduled": 4, "delivered": 4}),
    "spring-ecs.jsonl": ("spring-ecs", PAIRS),
    "sidekiq.jsonl": ("sidekiq", PAIRS),
    "shipped-sidekiq.jsonl": ("sidekiq", PAIRS),
    "flower.json": ("flower", {**PAIRS, "died": 1}),
    "delay-csv.csv": ("delay-csv", PAIRS),
}
TRACES = ("rabbitmq-tracing", "rabbitmq-tracing-text", "rabbitmq-firehose")
# Where the reports show what names its topology itself, or is told it by the guide.
TOPOLOGIES = {
    "rabbitmq-tracing.log": "",
    "rabbitmq-tracing-text.log": "",
    "rabbitmq-firehose.jsonl": "",
    "rabbitmq-events.json": "mails",
    "celery-events.jsonl": "celery",
    "celery-task-log.jsonl": "celery-log",
    "nservicebus-audit.jsonl": "Shop.Mailing",
    "spring-ecs.jsonl": "orders",
    "sidekiq.jsonl": "web_hook",
    "shipped-sidekiq.jsonl": "web_hook",
    "flower.json": "mails",
    "delay-csv.csv": "invoices",
}


def read_events(name: str, topology: Topology) -> list[MessageEvent]:
    """What an import makes of a file, without Spark."""
    mapping = load_shipped(FILES[name][0])
    (source,) = find([FOLDER / name], mapping=mapping)
    watched = Watched(
        topology.slug, topology.pattern, topology.parsed, frozenset({"entry", "exit", "publish"})
    )
    scope = Scope("main", "/", [watched])
    events: list[MessageEvent] = []
    with source.open() as file:
        for line in filter(None, read_lines(source, file)):
            assert not line.startswith(PROBLEM_MARK), line
            if source.is_trace:
                event = event_of_line(line, scope, mapping)
                events += [event] if event else []
            else:
                defaults = {"broker": "main", "topology": "mails"}
                events += mapping.read(orjson.loads(line), defaults)
    return events


@pytest.mark.parametrize("name", FILES)
def test_a_log_becomes_its_entries_and_deliveries(name: str, topology: Topology) -> None:
    events = read_events(name, topology)
    assert Counter(event.kind for event in events) == FILES[name][1]
    assert {event.source for event in events} == {"import"}
    assert len({event.event_id for event in events}) == len(events)
    entries = {event.key: event for event in events if event.kind == "scheduled"}
    for entry in entries.values():
        assert entry.topology
        assert (entry.recorded_at.microsecond, entry.due_at) == (
            250_000,
            entry.recorded_at + timedelta(milliseconds=entry.requested_delay_ms),
        )
    if "rabbitmq-events" not in name and "csv" not in name:
        late = [
            (event.recorded_at - entry.due_at) // timedelta(milliseconds=1)
            for event in events
            if event.kind == "delivered"
            and (entry := entries[event.key]).due_at
            and (entry.topology, entry.attempt) == (event.topology, event.attempt)
        ]
        expected = {120 + 50 * number for number in range(6)}
        if "tracing" not in name and "firehose" not in name:
            assert len(late) == FILES[name][1]["delivered"]
            assert set(late) <= expected


def test_every_shipped_mapping_has_a_log() -> None:
    assert {mapping for mapping, _ in FILES.values()} == set(shipped_names())


def test_each_example_of_the_guide_goes_from_its_file_to_a_chart(
    broker: Broker,
    event_log: Path,
    warm: RunModule,
    monkeypatch: pytest.MonkeyPatch,
    admin_client: Client,
) -> None:
    """All in one Spark, and their day computed once."""
    monkeypatch.setattr(launch, "run_module", warm)
    text = GUIDE.read_text()
    examples = re.findall(r"^\.venv/bin/python manage\.py import_log (.*)$", text, re.MULTILINE)
    files: dict[str, tuple[str, str]] = {}
    for example in examples:
        words = example.split()
        (name,) = FILES.keys() & words
        slug = words[words.index("--broker") + 1]
        owner, _ = Broker.objects.get_or_create(
            slug=slug, defaults={"name": slug, "amqp_addresses": "127.0.0.1"}
        )
        topology = TOPOLOGIES[name]
        if FILES[name][0] in TRACES:
            topology = f"orders-{slug}"
            params = {"name": "orders", "delay": "30s", "routing_key": "orders"}
            Topology.objects.create(
                broker=owner, slug=topology, kind="retry_pair", name="orders", params=params
            )
        files[name] = (slug, topology)
        words[words.index(name)] = str(FOLDER / name)
        call_command("import_log", *words)
    assert files.keys() == FILES.keys()
    nightly.run_day(NOON.date())
    whole = {"pattern": "", "destination": ""}
    for name, (slug, topology) in files.items():
        row = DayFigures.objects.get(broker=slug, topology=topology, **whole)
        assert row.entered == FILES[name][1]["scheduled"], name
        assert row.measured == FILES[name][1].get("delivered", 0), name
        page = admin_client.get(
            "/reports/",
            {"from": "2026-11-20", "to": "2026-11-20", "broker": slug, "topology": topology},
        ).content.decode()
        assert ("data-figure=" in page) == (row.measured > 0), name
        assert f"imported from {name}" in page, name
