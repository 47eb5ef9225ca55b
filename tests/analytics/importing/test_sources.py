from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analytics.events import encode
from analytics.importing.sources import Format, Refused, find
from tests.analytics.builders import an_event, write_log
from tests.analytics.importing.forms import as_csv

LINE = encode(an_event()) + b"\n"
# The first line of a file that RabbitMQ 4.3.6 wrote.
TRACE = (
    b'{"node":"r@localhost","timestamp":"2026-11-21T15:40:15.328+00:00","type":"published",'
    b'"exchange":"amq.topic","user":"u","queue":"none","connection":"c","vhost":"/","channel":1,'
    b'"routing_keys":["k"],"properties":{},"payload":"","routed_queues":[]}\n'
)
PARQUET = b"PAR1 and so on PAR1"


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("a.jsonl", LINE, "json"),
        ("a.jsonl.gz", gzip.compress(LINE), "json"),
        ("anything", b"\n\n" + LINE, "json"),
        ("torn.jsonl", LINE[:40], "json"),
        ("a.csv", as_csv([an_event()]).encode(), "csv"),
        ("a", b"\xef\xbb\xbf" + as_csv([an_event()]).encode(), "csv"),
        ("t.log", TRACE, "json"),
        ("a", PARQUET, "parquet"),
    ],
)
def test_the_content_tells_the_format(
    tmp_path: Path, name: str, content: bytes, reported: Format
) -> None:
    (tmp_path / name).write_bytes(content)
    (source,) = find([tmp_path / name], None)
    assert source.format == reported


@pytest.mark.parametrize(
    ("content", "given", "why"),
    [
        (b"", None, "is empty"),
        (b"hello\n", None, "Set it with --format"),
        (LINE, "csv", "looks like JSON, but --format is CSV"),
        (PARQUET, "json", "looks like Parquet"),
        (b"PAR1 torn", None, "is an incomplete Parquet file"),
        (gzip.compress(LINE)[:-12], None, "not a valid gzip file"),
        (
            b"=" * 80 + b"\n2026-11-21: Message published\n",
            "json",
            "add --mapping rabbitmq-tracing",
        ),
        (b'{"jid":"1","class":"A","queue":"q"}\n', None, "Sidekiq job log: add --mapping sidekiq"),
    ],
)
def test_what_cannot_be_read_as_what_it_should_be_is_a_sentence(
    tmp_path: Path, content: bytes, given: Format | None, why: str
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(Refused, match=why):
        find([tmp_path / "a"], given)


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        find([tmp_path / "a"], None)


def test_a_log_is_a_folder_of_files_without_its_locks_and_scratch(tmp_path: Path) -> None:
    write_log(tmp_path, [an_event()])
    (tmp_path / ".import.lock").write_text("x")
    (tmp_path / "_nightly").mkdir()
    (tmp_path / "_nightly/left.jsonl").write_bytes(LINE)
    (tmp_path / "date=2026-11-20/hour=12/empty-1.jsonl").touch()
    (source,) = find([tmp_path, tmp_path / "date=2026-11-20"], None)
    assert source.path.name == "test-1.jsonl"


def test_a_partitioned_table_is_one_source(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for number in range(3):
        part = table / f"kind={number}"
        part.mkdir(parents=True)
        (part / "part-0.snappy.parquet").write_bytes(PARQUET)
    (table / "_SUCCESS").touch()
    (tmp_path / "single.parquet").write_bytes(PARQUET)
    sources = find([tmp_path], None)
    assert {(source.path, source.format) for source in sources} == {
        (table, "parquet"),
        (tmp_path / "single.parquet", "parquet"),
    }


def test_a_folder_without_data_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(Refused, match="has no data"):
        find([tmp_path], None)
