from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from analytics.charts import svg
from analytics.charts.figures import dead_letters
from analytics.models import NightlyReport, Run
from analytics.results import nightly_report
from analytics.results.load import replace_day
from analytics.results.nightly_report import (
    PdfError,
    as_html,
    as_json,
    days_to_store,
    print_pdf,
    report_of,
    store_report,
)
from tests.analytics import result_rows
from tests.builders import make_user
from topology.models import Broker, Role

DAY = date(2026, 11, 20)
GROUP = {"broker": "main", "topology": "orders"}


@pytest.fixture
def computed(broker: Broker) -> Run:
    result_rows.days([DAY - timedelta(days=1), DAY], [GROUP])
    return Run.objects.create(day=DAY, state="done", finished_at=datetime.now(UTC), lines=7)


def printed(*arguments: str) -> str:
    output = StringIO()
    call_command("report", "--date", DAY.isoformat(), *arguments, stdout=output)
    return output.getvalue()


def test_a_chart_without_scripts_escapes_names_and_stacks_its_bars() -> None:
    rows = [("2026-11-20", "<b>", 3), ("2026-11-20", "expired", 1)]
    drawn = svg.draw(dead_letters(rows, {"2026-11-19": True, "2026-11-20": True}), 'a "label"')
    assert "<b>" not in drawn
    assert 'aria-label="a &quot;label&quot;"' in drawn
    bars = re.findall(r'<rect [^>]* y="([\d.]+)" [^>]*height="([\d.]+)"', drawn)
    tops = [float(top) for top, height in bars if float(height)]
    heights = [float(height) for _, height in bars if float(height)]
    assert heights[0] == pytest.approx(3 * heights[1], abs=0.2)
    assert tops[1] + heights[1] == pytest.approx(tops[0], abs=0.2)


def test_the_file_needs_nothing_else_and_has_the_pages_tables(computed: Run) -> None:
    found = report_of(DAY)
    html = as_html(found)
    assert not re.search(r"<script|<link|<img|url\(|(src|href)=\"(?!#)", html)
    assert html.count('<svg class="drawn') == 5
    assert html.count('<table class="calendar heat"') == 3
    assert "was due without a recorded end." in html
    for section in as_json(found)["tables"].values():
        assert section["title"] in html or section["title"] == "Service level objective"


def test_the_command_prints_a_text_and_json_and_writes_a_file(
    computed: Run, tmp_path: Path
) -> None:
    text = printed()
    assert text.startswith("Delayboard report of 2026-11-20 (UTC)\n\nSummary\n- Unexplained")
    assert re.search(r"orders +\d", text)
    tables = json.loads(printed("--json"))["tables"]
    scheduled = tables["ledger"]["rows"][-1][1]
    assert scheduled == report_of(DAY).total.fate("entered") > 0
    target = tmp_path / "report.html"
    printed("--output", str(target))
    assert "<h1>Delayboard report 2026-11-20</h1>" in target.read_text()


def test_a_day_without_figures_exits_with_code_4(broker: Broker) -> None:
    with pytest.raises(SystemExit) as end:
        printed()
    assert end.value.code == 4
    assert "No figures for this day" in as_html(report_of(DAY))


def test_what_the_command_cannot_do_is_one_sentence(computed: Run, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    for arguments, why in (
        (("--json", "--output", str(target)), "without --output"),
        (("--output", str(tmp_path / "report.txt")), "is neither a .html nor a .pdf file"),
    ):
        with pytest.raises(CommandError, match=why):
            printed(*arguments)
    with pytest.raises(CommandError, match="0001-01-01 is too long ago"):
        call_command("report", "--date", "0001-01-01")
    assert list(tmp_path.iterdir()) == []


def test_generated_figures_and_an_unfinished_day_are_named_in_each_form(broker: Broker) -> None:
    replace_day(DAY, result_rows.a_result(DAY, [GROUP]), is_generated=True)
    noon = datetime.combine(DAY, time(12), UTC)
    Run.objects.create(day=DAY, state="done", finished_at=noon, lines=7)
    text = printed()
    assert "computed from events that the demo generated" in text
    assert "The day was not over" in text
    assert json.loads(printed("--json"))["generated"] is True


def test_chromium_prints_a_pdf_with_what_is_folded_on_a_screen() -> None:
    row = "<p>A row of a long table</p>" * 50
    folded = f"<h1>A report</h1><details><summary>Table</summary>{row}</details>"
    sizes = [len(re.findall(rb"/Type /Page\b", print_pdf(text))) for text in ("<h1>A</h1>", folded)]
    assert sizes[0] == 1 < sizes[1]


def test_a_report_is_stored_for_each_finished_run_and_again_after_the_next(
    computed: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(html: str, *, alive: object) -> bytes:
        raise PdfError("No PDF: there is no Chromium.")

    monkeypatch.setattr(nightly_report, "print_pdf", refuse)
    now = datetime(2026, 11, 21, 1, tzinfo=UTC)
    assert days_to_store(now) == [DAY]
    store_report(DAY)
    assert days_to_store(now) == []
    assert days_to_store(now + timedelta(days=30)) == []
    Run.objects.update(finished_at=datetime.now(UTC))
    assert days_to_store(now) == [DAY]
    client.force_login(make_user("vera", Role.VIEWER))
    text = client.get("/reports/?from=2026-11-20").content.decode()
    assert 'href="/reports/nightly/2026-11-20.html"' in text
    assert "No PDF: there is no Chromium." in text
    answer = client.get("/reports/nightly/2026-11-20.html")
    assert answer.content.decode() == NightlyReport.objects.get().html
    assert 'filename="delayboard-report-2026-11-20.html"' in answer["Content-Disposition"]
    for missing in ("2026-11-20.pdf", "2026-11-19.html", "2026-99-20.html", "2026-11-20.exe"):
        assert client.get(f"/reports/nightly/{missing}").status_code == 404


def test_a_missing_pdf_is_logged_once_and_not_for_each_day(
    computed: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(html: str, *, alive: object) -> bytes:
        raise PdfError("No PDF: there is no Chromium.")

    monkeypatch.setattr(nightly_report, "print_pdf", refuse)
    for back in range(3):
        store_report(DAY - timedelta(days=back))
    assert [record.getMessage() for record in caplog.records] == [
        "The report of 2026-11-20: No PDF: there is no Chromium."
    ]


def test_without_chromium_nothing_is_logged_and_the_pdf_is_added_once_there_is_one(
    computed: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime(2026, 11, 21, 1, tzinfo=UTC)
    with monkeypatch.context() as patched:
        patched.setattr(nightly_report, "NAMES", ())
        assert store_report(DAY).pdf_error.startswith("No PDF: Chromium is not installed.")
        assert caplog.records == []
        assert days_to_store(now) == []
    assert days_to_store(now) == [DAY]
    monkeypatch.setattr(nightly_report, "print_pdf", lambda html, alive: b"%PDF-1.4")
    assert store_report(DAY).pdf == b"%PDF-1.4"
    assert days_to_store(now) == []


def test_who_does_not_see_all_brokers_gets_no_stored_report(
    computed: Run, broker: Broker, client: Client
) -> None:
    NightlyReport.objects.create(day=DAY, made_at=datetime.now(UTC), html="secret")
    client.force_login(make_user("vera", Role.VIEWER, broker))
    assert "/reports/nightly/" not in client.get("/reports/?from=2026-11-20").content.decode()
    assert client.get("/reports/nightly/2026-11-20.html").status_code == 403
