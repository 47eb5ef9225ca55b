from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from analytics import launch
from analytics.events import encode
from analytics.importing import import_files, requested
from analytics.importing.import_files import read_scope, request_reports
from analytics.log import take_lock
from analytics.models import Run
from analytics.models.run import RunState
from tests.analytics.builders import NOON, an_event, logged
from tests.analytics.importing.forms import write_lines
from tests.analytics.warm_spark import RunModule
from topology.models import Broker, Topology

pytestmark = pytest.mark.django_db


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    write_lines(tmp_path / "lines.jsonl", [encode(an_event())])
    return tmp_path / "lines.jsonl"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"broker": "elsewhere"}, "The broker “elsewhere” does not exist"),
        ({"topology": ["orders"]}, "--topology needs --broker"),
        ({"broker": "main", "topology": ["bills"]}, "Main has no topology bills"),
        ({"broker": "main"}, "--broker works only with traces"),
        ({"format": "csv"}, "looks like JSON"),
        ({"mapping": "nothing"}, "The mapping “nothing” does not exist"),
        ({"mapping": "delay-csv", "broker": "main"}, "the mapping delay-csv reads CSV"),
    ],
)
def test_options_that_lead_nowhere_are_a_sentence(
    lines: Path, event_log: Path, topology: Topology, options: dict[str, object], why: str
) -> None:
    with pytest.raises(CommandError, match=why) as refused:
        call_command("import_log", [lines], **options)
    assert refused.value.returncode == 2
    assert not event_log.exists()


def test_a_trace_without_its_broker_is_a_sentence(tmp_path: Path, event_log: Path) -> None:
    (tmp_path / "t.log").write_bytes(
        b'{"type":"published","routing_keys":[],"properties":{},"payload":"eA=="}\n'
    )
    with pytest.raises(CommandError, match="Name the broker with --broker"):
        call_command("import_log", [tmp_path / "t.log"])
    assert not event_log.exists()


def test_two_imports_at_once_exclude_each_other(lines: Path, event_log: Path) -> None:
    with (
        take_lock(event_log, "import"),
        pytest.raises(CommandError, match="Another import is running"),
    ):
        call_command("import_log", [lines])
    assert logged(event_log) == []


def test_a_log_that_cannot_be_written_is_a_sentence(lines: Path, event_log: Path) -> None:
    event_log.write_text("in the way")
    with pytest.raises(CommandError, match="cannot write the event log"):
        call_command("import_log", [lines])


def test_an_import_says_what_it_did_and_asks_for_the_reports(
    lines: Path,
    event_log: Path,
    broker: Broker,
    warm: RunModule,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "run_module", warm)
    with lines.open("ab") as file:
        file.write(b"nonsense\n")
    out, complaints = StringIO(), StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("import_log", [lines], stdout=out, stderr=complaints)
    assert ended.value.code == 3
    assert "2 lines read: 1 added, 0 already known, 1 malformed and skipped." in out.getvalue()
    assert "The worker will compute the reports of 2026-11-20 again." in out.getvalue()
    assert f"{lines}, line 2: The line is not JSON" in complaints.getvalue()
    assert Run.objects.get(day=NOON.date()).state == RunState.REQUESTED
    assert len(logged(event_log)) == 1


def test_a_report_that_is_being_made_is_not_asked_for_nor_one_of_a_day_to_come(db: None) -> None:
    day = NOON.date()
    Run.objects.create(day=day, state=RunState.RUNNING)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    assert request_reports([date(1, 1, 1), day, tomorrow]) == ([], [day])


def test_the_days_of_an_interrupted_import_are_requested_by_whoever_comes_next(
    event_log: Path, db: None
) -> None:
    """Not while an import runs, which may be the one that noted them."""
    event_log.mkdir(exist_ok=True)
    import_files._note_days(event_log, [NOON.date()])
    import_files._note_days(event_log, [NOON.date() + timedelta(days=1)])
    with take_lock(event_log, "import"):
        assert requested.claim_own("w") is None
        assert not Run.objects.exists()
    assert requested.claim_own("w") is None
    assert sorted(run.day for run in Run.objects.filter(state=RunState.REQUESTED)) == [
        NOON.date(),
        NOON.date() + timedelta(days=1),
    ]
    assert not import_files.has_noted_days()
    assert request_reports() == ([], [])
    # A run that goes on may have read the day before its new lines were there.
    Run.objects.filter(day=NOON.date()).update(state=RunState.RUNNING)
    import_files._note_days(event_log, [NOON.date()])
    assert request_reports() == ([], [NOON.date()])
    Run.objects.update(state=RunState.DONE)
    assert requested.claim_own("w") is None
    assert Run.objects.get(day=NOON.date()).state == RunState.REQUESTED
    assert not import_files.has_noted_days()


def test_a_topology_that_cannot_be_read_is_named_and_the_others_read_the_trace(
    topology: Topology, broker: Broker
) -> None:
    Topology.objects.create(
        broker=broker, slug="odd", kind="retry_pair", name="odd", params={"delay": "never"}
    )
    Topology.objects.create(broker=broker, slug="gone", kind="no_such", name="gone", params={})
    scope = read_scope(broker)
    assert [one.slug for one in scope.watched] == ["orders"]
    assert len(scope.skipped) == 2
    assert (
        "The topology gone does not read the trace. The pattern “no_such” does not exist."
        in scope.skipped
    )
