"""Two hosts move their hours to a shared place, and a third has each line of both once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest
from django.utils import timezone
from pytest_django import Settings

from analytics import nightly, shared_log
from analytics.log import LogError, Slot, name_of
from analytics.models import (
    CompactedDay,
    DayFigures,
    LogHost,
    LogPosition,
    Minute,
    Run,
    ScheduledMessage,
    SentPart,
)
from analytics.retention.log_files import LOG
from analytics.storage import StorageError, open_storage
from delayboard.worker.keep_sending import keep_sending
from delayboard.worker.schedule import find_missing_days
from tests.analytics.builders import a_trip, an_entry, follow_log, write_log
from tests.analytics.day_lines import days, read_day
from tests.builders import eventually
from tests.postgres import free_port
from topology.models import Topology

pytestmark = pytest.mark.django_db
DAY = date(2026, 11, 20)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOW = NOON + timedelta(hours=2)


@pytest.fixture
def hosts(settings: Settings, tmp_path: Path) -> list[Path]:
    """The logs of two hosts; this process is that of a third."""
    settings.SHARED_LOG_URL = settings.PARQUET_URL = f"file://{tmp_path / 'shared'}"
    settings.RESULTS_URL = f"file://{tmp_path / 'results'}"
    settings.EVENT_LOG = tmp_path / "reader" / "log"
    return [tmp_path / name / "log" for name in "ab"]


def send_all(log: Path, now: datetime = NOW) -> int:
    unsent = [one for one in shared_log.find_unsent(log, date.min) if one.is_finished(now)]
    for one in unsent:
        shared_log.send(log, one, is_over=one.is_over(now))
    return len(unsent)


def fetched() -> Counter[str]:
    shared_log.fetch(date.min)
    mirror = shared_log.log_for_runs()
    return Counter(event.message_id for day in days(mirror) for event in read_day(mirror, day))


def test_each_line_of_all_hosts_is_read_once_also_those_that_come_late(hosts: list[Path]) -> None:
    for log in hosts:
        write_log(log, [an_entry(f"{log.parent.name}{n}", NOON) for n in range(3)], "tap.orders.1")
        write_log(log, [an_entry(f"{log.parent.name}9", NOON)], "facts.1")
        assert send_all(log, NOON + timedelta(minutes=50)) == 0
        assert send_all(log) == 1
    names = {f"{host}{n}" for host in "ab" for n in (0, 1, 2, 9)}
    assert fetched() == dict.fromkeys(names, 1)
    write_log(hosts[0], [an_entry("late", NOON)], "tap.orders.1")
    write_log(hosts[0], [an_entry("imported", NOON)], "import.x")
    assert [send_all(log) for log in hosts] == [1, 0]
    assert fetched() == dict.fromkeys({*names, "late", "imported"}, 1)
    assert not shared_log.find_unsent(hosts[0], date.min)


def test_a_kill_between_object_and_row_sends_the_part_again(
    hosts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = hosts[0]
    write_log(log, [an_entry("m1", NOON)], "tap.orders.1")
    with monkeypatch.context() as patched:
        patched.setattr(SentPart, "save", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            send_all(log)
    assert fetched() == {}
    write_log(log, [an_entry("m2", NOON)], "tap.orders.1")
    send_all(log)
    assert fetched() == {"m1": 1, "m2": 1}


def test_a_torn_line_is_sent_alone_when_nobody_writes_to_its_hour(hosts: list[Path]) -> None:
    log = hosts[0]
    write_log(log, [an_entry("m1", NOON), an_entry("torn", NOON)], "tap.orders.1")
    (path,) = log.rglob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    write_log(log, [an_entry("m2", NOON)], "tap.orders.2")
    send_all(log)
    assert fetched() == {"m1": 1, "m2": 1}
    assert [one.bytes for one in shared_log.find_unsent(log, date.min)] != []
    send_all(log, NOW + timedelta(hours=3))
    assert fetched() == {"m1": 1, "m2": 1}
    assert not shared_log.find_unsent(log, date.min)


def test_what_is_damaged_or_missing_is_refused_with_its_name(hosts: list[Path]) -> None:
    write_log(hosts[0], [an_entry("m1", NOON)], "tap.orders.1")
    send_all(hosts[0])
    (stored,) = (hosts[0].parent.parent / "shared").rglob("*.gz")
    whole = stored.read_bytes()
    stored.write_bytes(whole[:-10])
    with pytest.raises(LogError, match="is damaged"):
        shared_log.fetch(date.min)
    stored.unlink()
    with pytest.raises(StorageError, match="cannot reach"):
        shared_log.fetch(date.min)
    stored.write_bytes(whole)
    SentPart.objects.update(bytes=1)
    with pytest.raises(LogError, match="Restore the file"):
        shared_log.fetch(date.min)


def test_a_day_is_computed_again_after_a_host_has_sent_more_of_it(hosts: list[Path]) -> None:
    now = datetime.now(UTC)
    day = (now - timedelta(days=2)).date()
    noon = datetime.combine(day, NOON.timetz())
    write_log(hosts[0], [an_entry("m1", noon)], "tap.orders.1")
    assert day not in find_missing_days(now, hosts[1])
    send_all(hosts[0], now)
    assert day in find_missing_days(now, hosts[1])
    run = Run.objects.create(day=day, state="done", started_at=timezone.now(), finished_at=now)
    assert day not in find_missing_days(now, hosts[1])
    write_log(hosts[0], [an_entry("late", noon)], "tap.orders.1")
    send_all(hosts[0], now)
    assert day in find_missing_days(now, hosts[1])
    Run.objects.filter(pk=run.pk).update(started_at=timezone.now())
    assert day not in find_missing_days(now, hosts[1])


def test_sent_days_leave_the_host_and_later_the_shared_place(
    hosts: list[Path], settings: Settings
) -> None:
    settings.EVENT_LOG = log = hosts[0]
    now = NOON + timedelta(days=4)
    write_log(log, [an_entry("m1", NOON)], "tap.orders.1")
    (path,) = log.rglob("*.jsonl")
    os.utime(path, (NOON.timestamp(), NOON.timestamp()))
    Run.objects.create(day=DAY, state="done")
    LOG.delete_expired(now, lambda: None)
    assert days(log) == [DAY]
    send_all(log)
    LOG.delete_expired(now, lambda: None)
    assert days(log) == [DAY]
    LogPosition.objects.create(
        log=name_of(log), path=str(path.relative_to(log)), bytes_read=path.stat().st_size
    )
    assert LOG.delete_expired(now, lambda: None) == 1
    assert days(log) == []
    assert fetched() == {"m1": 1}
    LOG.delete_expired(NOON + timedelta(days=89), lambda: None)
    assert fetched() == {"m1": 1}
    LOG.delete_expired(NOON + timedelta(days=92), lambda: None)
    assert fetched() == {}
    assert not list((log.parent.parent / "shared").rglob("*.gz"))


def test_a_day_that_another_host_has_not_sent_whole_stays(
    hosts: list[Path], settings: Settings
) -> None:
    settings.EVENT_LOG = log = hosts[0]
    settings.KEEP_DAYS = settings.KEEP_DAYS | {"KEEP_LOG_DAYS": 1}
    now = NOON + timedelta(days=2)
    write_log(log, [an_entry("m1", NOON)], "tap.orders.1")
    send_all(log)
    Run.objects.create(day=DAY, state="done")
    LogHost.objects.create(name="slow-1", seen_at=now, unsent_since=NOON)
    LOG.delete_expired(now, lambda: None)
    assert fetched() == {"m1": 1}
    LogHost.objects.update(unsent_since=None)
    LOG.delete_expired(now, lambda: None)
    assert fetched() == {}


def test_positions_of_other_hosts_stay(hosts: list[Path], settings: Settings) -> None:
    settings.EVENT_LOG = hosts[0]
    LogHost.objects.create(name="other-1", seen_at=NOW)
    LogPosition.objects.create(log="other-1", path=f"date={DAY}/hour=12/tap.a.1-1.jsonl")
    LogPosition.objects.create(path=f"date={DAY}/hour=12/tap.b.1-1.jsonl")
    LogPosition.objects.create(log=name_of(hosts[0]), path=f"date={DAY}/hour=12/tap.c.1-1.jsonl")
    LOG.delete_expired(NOW + timedelta(days=1), lambda: None)
    assert set(LogPosition.objects.values_list("log", flat=True)) == {"", "other-1"}


def test_the_name_of_a_log_is_made_once_and_each_process_has_its_own(tmp_path: Path) -> None:
    name = name_of(tmp_path / "log")
    assert name == name_of(tmp_path / "log") != name_of(tmp_path / "other")
    first, second = Slot(tmp_path / "log"), Slot(tmp_path / "log")
    assert [first.name, second.name] == [name, f"{name}/2"]
    first.close()
    again = Slot(tmp_path / "log")
    assert again.name == name
    again.close()
    second.close()


def test_a_first_copy_that_comes_after_its_repeat_from_another_host_counts_once(
    topology: Topology, hosts: list[Path]
) -> None:
    later = NOON + timedelta(seconds=5)
    trips = a_trip("m1", NOON)
    again = [an_entry("m1", later, redelivered=True), an_entry("m2", later)]
    write_log(hosts[1], again, "tap.orders.2")
    follow_log(hosts[1])
    write_log(hosts[0], [*trips, an_entry("m0", NOON)], "tap.orders.1")
    follow_log(hosts[0])
    rows = ScheduledMessage.objects.filter(topology=topology).values_list("key", flat=True)
    assert Counter(rows) == {"m0": 1, "m1": 1, "m2": 1}
    assert sum(minute.entered for minute in Minute.objects.all()) == 3


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3-compatible server; its address."""
    folder = tmp_path_factory.mktemp("weed")
    ports = [free_port() for _ in range(4)]
    account = {"accessKey": "delayboard", "secretKey": "very-secret"}
    identity = {"name": "test", "credentials": [account], "actions": ["Admin", "Read", "Write"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    options = [f"-{name}={port}" for name, port in zip(names, ports, strict=True)]
    grpc = [f"-{name}.grpc={free_port()}" for name in names]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("weed")),
                *("server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"),
                *("-filer", "-s3", f"-s3.config={folder / 's3.json'}"),
                *("-master.volumeSizeLimitMB=64", "-volume.max=20", *options, *grpc),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://127.0.0.1:{ports[3]}"
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/status", timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.mark.long
def test_a_nightly_run_reads_what_two_hosts_moved_to_s3_which_spark_cannot_reach(
    weed: str, hosts: list[Path], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.fs import S3FileSystem

    monkeypatch.setenv("AWS_ENDPOINT_URL", weed)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "delayboard")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    eventually(lambda: answers(weed), "the server answers")
    host = weed.removeprefix("http://")
    files = S3FileSystem(endpoint_override=host, scheme="http", allow_bucket_creation=True)

    def has_bucket() -> bool:
        try:
            files.create_dir("delayboard")
        except OSError:
            return False
        return True

    eventually(has_bucket, "a bucket is made")
    settings.SHARED_LOG_URL = "s3://delayboard/log"
    settings.PARQUET_URL = f"file://{settings.EVENT_LOG.parent / 'parquet'}"
    for log in hosts:
        name = log.parent.name
        write_log(log, [e for n in range(50) for e in a_trip(f"{name}{n}", NOON)], "tap.orders.1")
        send_all(log)
    nightly.run_day(DAY)
    assert Run.objects.get(day=DAY).lines == 200
    assert DayFigures.objects.get(topology="orders", destination="").entered == 100
    write_log(hosts[0], a_trip("late", NOON), "tap.orders.1")
    send_all(hosts[0])
    nightly.run_day(DAY)
    assert DayFigures.objects.get(topology="orders", destination="").entered == 101
    assert Run.objects.get(day=DAY).lines == 202
    open_storage(settings.SHARED_LOG_URL).delete("lines/of-nobody.gz")
    shared_log.delete_sent(DAY + timedelta(days=1), lambda: None)
    with pytest.raises(StorageError, match="cannot reach s3://"):
        open_storage(settings.SHARED_LOG_URL).get("lines/x.gz", settings.EVENT_LOG / "x")


@pytest.mark.long
def test_another_host_goes_on_with_the_parquet_of_the_first(
    hosts: list[Path], settings: Settings, tmp_path: Path
) -> None:
    for log in hosts:
        write_log(log, a_trip(log.parent.name, NOON), "tap.orders.1")
        send_all(log)
    nightly.run_day(DAY)
    first = CompactedDay.objects.get().manifest
    settings.EVENT_LOG = tmp_path / "other reader" / "log"
    nightly.run_day(DAY)
    assert CompactedDay.objects.get().manifest == first
    assert Run.objects.get(day=DAY).lines == 4
    write_log(hosts[0], a_trip("late", NOON), "tap.orders.1")
    send_all(hosts[0])
    nightly.run_day(DAY)
    second = CompactedDay.objects.get().manifest
    assert second != first
    settings.EVENT_LOG = tmp_path / "reader" / "log"
    nightly.run_day(DAY)
    assert CompactedDay.objects.get().manifest == second
    assert Run.objects.get(day=DAY).lines == 6


def test_what_waits_is_shown_while_the_shared_place_is_down(
    settings: Settings, tmp_path: Path
) -> None:
    settings.EVENT_LOG = log = tmp_path / "log"
    write_log(log, [an_entry("m1", NOON)], "tap.orders.1")
    (tmp_path / "file").touch()
    settings.SHARED_LOG_URL = f"file://{tmp_path / 'file'}"
    LogHost.objects.create(name=name_of(log), seen_at=NOW, is_sending=True)
    with pytest.raises((StorageError, LogError)):
        keep_sending(stop=Event(), beat=lambda details: None)
    host = LogHost.objects.get()
    (path,) = log.glob("date=*/hour=*/*.jsonl")
    assert (host.unsent_since, host.unsent_bytes) == (NOON, path.stat().st_size)
