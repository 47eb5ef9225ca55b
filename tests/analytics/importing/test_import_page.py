"""The page Imports, with the worker's part and without Spark."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import BinaryIO

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from analytics import disk
from analytics.disk import DiskSpace
from analytics.importing import requested, staging
from analytics.importing.import_files import ImportResult, Problem, import_files
from analytics.importing.sources import HEAD_BYTES, Refused, Source
from analytics.importing.staging import Scope, read_lines
from analytics.mappings import mapping as mapping_module
from analytics.mappings.mapping import load_shipped, parse
from analytics.models import LogImport, SavedMapping
from analytics.models.imports import UPLOADS
from tests.analytics.builders import NOON
from topology import work
from topology.models import AuditEntry, Broker, WorkState

pytestmark = pytest.mark.django_db
FOLDER = Path(__file__).parent / "foreign_logs"
UNKNOWN = (
    b'{"when":"x","time":1763629200250,"what":{"event":"enqueued"},"queue":"a","ttl":5,"id":"m"}\n'
    b'{"time":1763629205300,"what":{"event":"consumed"},"queue":"a","id":"m"}\n'
    b'{"time":"soon","what":{"event":"consumed"},"queue":"<b>","id":"n"}\n'
)


def upload(client: Client, name: str, content: bytes) -> LogImport:
    file = SimpleUploadedFile(name, content)
    answer = client.post("/reports/imports/upload/", {"file": file}, follow=True)
    assert answer.status_code == 200
    return LogImport.objects.get()


def change(client: Client, row: LogImport, **values: object) -> str:
    answer = client.post(f"/reports/imports/{row.pk}/change/", values, follow=True)
    row.refresh_from_db()
    return answer.content.decode()


def test_a_known_log_is_proposed_by_its_fields(admin_client: Client, event_log: Path) -> None:
    row = upload(admin_client, "log.jsonl", (FOLDER / "sidekiq.jsonl").read_bytes())
    assert row.mapping_name == "sidekiq"
    page = admin_client.get(f"/reports/imports/{row.pk}/").content.decode()
    assert page.count("scheduled, delivered") == 6
    assert "web_hook" in page
    assert AuditEntry.objects.filter(action="import file uploaded", what="log.jsonl").exists()


def test_an_unknown_log_is_guessed_corrected_and_saved(
    admin_client: Client, event_log: Path, broker: Broker
) -> None:
    row = upload(admin_client, "mine.log", UNKNOWN)
    page = admin_client.get(f"/reports/imports/{row.pk}/").content.decode()
    assert "The field recorded_at: &#x27;soon&#x27; is no number." in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    page = change(
        admin_client,
        row,
        action="fields",
        format="json",
        time="time",
        time_form="ms",
        zone="UTC",
        queue="queue",
        message_id="id",
        delay="ttl",
        delay_unit="m",
        event="what.event",
        value=["enqueued", "consumed"],
        kind=["scheduled", "delivered"],
    )
    assert 'unit = "m"' in row.mapping_text
    change(admin_client, row, action="save", save_as="My log", text=row.mapping_text)
    assert SavedMapping.objects.get().name == "my-log"
    page = change(admin_client, row, action="dry-run", text=row.mapping_text, broker="")
    assert "Choose the broker of the log." in page
    assert row.work is None
    page = change(admin_client, row, action="check", text="format = ", broker="main")
    assert "The mapping is not TOML" in page
    assert "format = " not in row.mapping_text.splitlines()


def test_a_dry_run_and_an_import_are_work_of_the_files_host(
    admin_client: Client, event_log: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = upload(admin_client, "mine.csv", (FOLDER / "delay-csv.csv").read_bytes())
    path = Path(row.path)
    outcome = ImportResult(
        files=1,
        read=12,
        added=11,
        malformed=1,
        problems=[Problem(row.path, 3, "It is odd.")],
        days=[NOON.date()],
        events=11,
        topologies=["invoices"],
        quality=["whole seconds"],
    )
    monkeypatch.setattr(requested, "import_files", lambda *_, **__: outcome)
    for action, word in (("dry-run", "Events to add"), ("import", "Events added")):
        page = change(admin_client, row, action=action, text=row.mapping_text, broker="main")
        assert "The worker starts it next." in page
        LogImport.objects.update(host="elsewhere")
        assert requested.claim_own("w") is None
        LogImport.objects.update(host=row.host)
        claimed = requested.claim_own("w")
        assert claimed
        work.attempt(requested.attend, claimed, stop=Event(), alive=lambda: None)
        page = admin_client.get(f"/reports/imports/{row.pk}/").content.decode()
        assert word in page
        assert "It is odd." in page
        assert "exact to one second only" in page
    row.refresh_from_db()
    assert (row.is_imported, row.path, path.exists()) == (True, "", False)
    assert "Imported" in admin_client.get("/reports/imports/").content.decode()


def test_what_cannot_be_imported_fails_in_a_sentence(
    admin_client: Client, event_log: Path, broker: Broker
) -> None:
    row = upload(admin_client, "empty.csv", b"a\n")
    change(admin_client, row, action="import")
    claimed = requested.claim_own("w")
    assert claimed
    work.attempt(requested.attend, claimed, stop=Event(), alive=lambda: None)
    claimed.refresh_from_db()
    assert (claimed.state, claimed.error[:46]) == (
        WorkState.FAILED,
        "Delayboard cannot detect the format of empty.c",
    )
    change(admin_client, row, action="delete")
    assert row.path == ""
    assert not any((event_log / UPLOADS).iterdir())


def test_a_file_that_is_being_read_is_not_deleted_and_a_deleted_one_not_imported(
    admin_client: Client, event_log: Path, broker: Broker
) -> None:
    row = upload(admin_client, "mine.csv", (FOLDER / "delay-csv.csv").read_bytes())
    change(admin_client, row, action="import", text=row.mapping_text, broker="main")
    page = change(admin_client, row, action="delete")
    assert "Stop the import first." in page
    row.refresh_from_db()
    assert Path(row.path).exists()
    LogImport.objects.update(path="")
    claimed = requested.claim_own("w")
    assert claimed
    work.attempt(requested.attend, claimed, stop=Event(), alive=lambda: None)
    claimed.refresh_from_db()
    assert (claimed.state, claimed.error[:21]) == (WorkState.FAILED, "The file was deleted ")


@pytest.mark.parametrize("at", [2, 40])
def test_a_damaged_gzip_is_said_to_be_one_and_stays_deletable(
    admin_client: Client, event_log: Path, broker: Broker, at: int
) -> None:
    packed = bytearray(gzip.compress((FOLDER / "delay-csv.csv").read_bytes() * 9))
    packed[at] ^= 0xFF
    row = upload(admin_client, "mine.csv.gz", bytes(packed))
    assert admin_client.get(f"/reports/imports/{row.pk}/").status_code == 200
    change(admin_client, row, action="delete")
    assert not any((event_log / UPLOADS).iterdir())


def test_a_large_file_is_refused_before_it_is_read(
    admin_client: Client, event_log: Path, settings: object
) -> None:
    settings.IMPORT_MB = 0  # type: ignore[attr-defined]
    file = SimpleUploadedFile("a.csv", b"a\n")
    answer = admin_client.post("/reports/imports/upload/", {"file": file}, follow=True)
    assert "The file is larger than 0 MB." in answer.content.decode()
    assert not LogImport.objects.exists()


def test_only_admins_of_all_brokers_import(client: Client, event_log: Path, db: None) -> None:
    assert client.post("/reports/imports/upload/", {}).status_code in (302, 403)


def test_what_unpacks_to_much_is_previewed_from_its_begin_and_never_unpacked_whole(
    admin_client: Client, event_log: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page reads a mebibyte; the import ends where the disk has no room for what it reads."""
    begin = (FOLDER / "delay-csv.csv").read_bytes()
    packed = gzip.compress(begin + begin.splitlines(keepends=True)[1] * 300_000, compresslevel=9)
    row = upload(admin_client, "bomb.csv.gz", packed)
    unpacked: list[int] = []

    def count(source: Source, file: BinaryIO) -> Iterator[bytes]:
        unpacked.append(len(file.read()))
        file.seek(0)
        return read_lines(source, file)

    monkeypatch.setattr(requested, "read_lines", count)
    assert "Recorded" in admin_client.get(f"/reports/imports/{row.pk}/").content.decode()
    assert unpacked
    assert max(unpacked) <= HEAD_BYTES
    space = DiskSpace(50 * 1024 * 1024, 10**9)
    monkeypatch.setattr(disk, "read_disk_space", lambda folder: space)
    with pytest.raises(Refused, match=r"than the disk of the event log has room for\. Free"):
        import_files(
            [Path(row.path)],
            mapping=parse(row.mapping_text, "delay-csv"),
            scope=Scope("main", "/", topology="orders"),
        )
    assert not (event_log / "_import").exists()
    monkeypatch.setattr(staging, "LONGEST_LINE", 1000)
    one_line = event_log / "one.log.gz"
    one_line.write_bytes(gzip.compress(b"x" * 2000))
    text = load_shipped("rabbitmq-tracing-text")
    with pytest.raises(Refused, match=r"one\.log\.gz has a line of more than 0 MiB"):
        import_files([one_line], mapping=text, scope=Scope("main", "/"))


def test_a_pattern_that_takes_for_ever_is_a_sentence_in_the_preview_and_in_the_import(
    admin_client: Client, event_log: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping_module, "SEARCH_SECONDS", 0.05)
    row = upload(admin_client, "slow.log", b"a" * 100 + b"!\n")
    text = """
format = "text"
pattern = '^(?P<at>(a|aa)+)$'
[fields]
recorded_at = "at"
[[events]]
kind = "died"
"""
    page = change(admin_client, row, action="check", text=text, broker="main")
    assert "Avoid repetitions within repetitions: ^(?P&lt;at&gt;(a|aa)+)$" in page
    with pytest.raises(Refused, match=r"takes more than 0 seconds"):
        import_files(
            [Path(row.path)],
            mapping=parse(text, "slow"),
            scope=Scope("main", "/", topology="orders"),
        )
