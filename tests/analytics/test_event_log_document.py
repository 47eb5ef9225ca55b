"""docs/event-log.md: it names what there is, and its examples run and answer as it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import duckdb
import orjson
import pytest

from analytics import facts
from analytics.events import FIELDS, HEADERS_LIMIT_BYTES, PROBE, VALUE_LIMIT_CHARACTERS, Kind
from analytics.log import ROLL_BYTES
from analytics.recorder.copies import STORED_BODY_BYTES
from analytics.retention.log_files import LOG
from tests.analytics.test_golden import GOLDEN, TODAY, lines_of

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "event-log.md").read_text()
EXAMPLE = re.compile(r"```(sh|sql)\n(.*?)```(?:\n```text\n(.*?)```)?", re.DOTALL)


def section(title: str) -> str:
    """The text below a heading, until the next one."""
    found = re.search(
        rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", DOCUMENT, re.DOTALL | re.MULTILINE
    )
    assert found, f"no section “{title}”"
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line[2:-2].split(" | ")] for line in lines]


def examples(language: str) -> list[tuple[str, str]]:
    """What is to be run, and what it answers."""
    return [(text, answer) for name, text, answer in EXAMPLE.findall(DOCUMENT) if name == language]


@pytest.fixture
def golden_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The golden lines where the examples look for them, and a torn one behind them."""
    hour = tmp_path / "var" / "log" / "date=2026-11-20" / "hour=07"
    hour.mkdir(parents=True)
    lines = (GOLDEN / TODAY).read_bytes()
    (hour / "tap.orders.5f0c12ab-1.jsonl").write_bytes(lines + lines[:100] + b"\n")
    oldest = lines_of("v1-31-fields.jsonl")[0]
    (hour / "tap.orders.5f0c12ab-2.jsonl").write_bytes(b"\n" + oldest.replace(b"m-1", b"m-0")[:-9])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_document_names_exactly_the_fields_with_their_types_in_order() -> None:
    assert {row[0]: row[1] for row in rows("The fields")} == FIELDS
    assert [row[0] for row in rows("The fields")] == list(FIELDS)


def test_the_example_of_each_field_is_a_value_of_its_type() -> None:
    for name, kind, *_, example in rows("The fields"):
        values = {"integer": int, "boolean": bool, "list of failures": list}
        assert type(orjson.loads(example)) is values.get(kind, str), name


def test_the_document_names_exactly_the_kinds_and_sources() -> None:
    assert sorted(row[0] for row in rows("The kinds")) == sorted(get_args(Kind))
    sources = {orjson.loads(line)["source"] for line in lines_of(TODAY)}
    assert {row[0] for row in rows("The sources")} == sources | {PROBE}
    assert facts.SOURCE in sources


def test_the_document_names_every_source_of_a_publishing_time_there_is_a_line_of() -> None:
    reported = {orjson.loads(line)["published_at_source"] for line in lines_of(TODAY)} - {""}
    assert {row[0] for row in rows("When it was published")} == reported


def test_the_numbers_of_the_document_are_those_of_the_code() -> None:
    assert f"at most {HEADERS_LIMIT_BYTES} bytes" in DOCUMENT
    assert f"cut at {VALUE_LIMIT_CHARACTERS} characters" in DOCUMENT
    assert f"{ROLL_BYTES // 1024**2} MiB" in DOCUMENT
    assert f"`{LOG.setting}`" in DOCUMENT
    assert f"and {len(FIELDS)} since" in DOCUMENT
    assert f"at most {STORED_BODY_BYTES // 1024} KiB" in DOCUMENT


@pytest.mark.parametrize(("command", "answer"), examples("sh"))
def test_the_examples_of_jq_answer_as_the_document_says(
    golden_log: Path, command: str, answer: str
) -> None:
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == (answer, "")


def test_the_examples_of_duckdb_answer_as_the_document_says(golden_log: Path) -> None:
    database = duckdb.connect()
    reported = examples("sql")
    assert len(reported) == 4
    for query, answer in reported:
        if not answer:
            database.execute(query)
            continue
        database.sql(query).write_csv(str(golden_log / "answer.csv"))
        assert (golden_log / "answer.csv").read_text() == answer
