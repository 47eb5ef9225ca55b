"""One thread per watched subject, and what it tells."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from delayboard.live.feed import Feed
from delayboard.live.subjects import News, Subject
from tests.builders import eventually
from tests.topology.builders import NOON
from topology.models import Broker

SOON = 10.0


class Told:
    """One who watches: what was delivered, in order."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[str] = SimpleQueue()

    def __call__(self, text: str) -> None:
        self._queue.put(text)

    def next(self) -> str:
        version: str = self.next_message()["version"]
        return version

    def next_message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._queue.get(timeout=SOON))
        return found

    def is_empty(self) -> bool:
        try:
            self._queue.get_nowait()
        except Empty:
            return True
        return False


class Source:
    """A subject whose version a test sets; a read waits for the test's leave."""

    def __init__(self, key: str = "brokers/x") -> None:
        self.text = "1"
        self.rows: dict[int, str] = {}
        self.error: Exception | None = None
        self.threads: set[str] = set()
        self._leave = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self.subject = Subject(key, Broker(slug="x"), self._read, 0.0)

    def _read(self) -> News:
        self._leave.acquire(timeout=SOON)
        self.threads.add(str(threading.get_ident()))
        self._done.release()
        if self.error:
            raise self.error
        return News(self.text, NOON, self.rows)

    def read(self, text: str, error: Exception | None = None) -> None:
        """Let one read pass, with this outcome."""
        self.text, self.error = text, error
        self._leave.release()
        assert self._done.acquire(timeout=SOON)

    def end(self) -> None:
        """Let every read pass, so that the thread sees that it shall end."""
        self._leave.release(1000)


@pytest.fixture
def source(db: None) -> Iterator[Source]:
    found = Source()
    yield found
    found.end()


@pytest.fixture
def feed() -> Iterator[Feed]:
    found = Feed()
    yield found
    found.end()


def running(key: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(f"feed of {key}")


def test_one_thread_reads_the_version_for_all_who_watch(feed: Feed, source: Source) -> None:
    one, other = Told(), Told()
    feed.watch(source.subject, one)
    feed.watch(source.subject, other)
    source.read("1")
    first = one.next_message()
    assert first == other.next_message()
    assert first == {"version": "1", "at": NOON.isoformat(), "rows": {}, "within": 0.02}
    assert running(source.subject.key) == 1
    assert len(source.threads) == 1


def test_only_news_is_told(feed: Feed, source: Source) -> None:
    reported = Told()
    feed.watch(source.subject, reported)
    for text in ("1", "1", "1", "2", "2", "3"):
        source.read(text)
    assert [reported.next() for _ in range(3)] == ["1", "2", "3"]
    source.rows = {7: "deleted"}
    source.read("3")
    assert reported.next_message()["rows"] == {"7": "deleted"}
    assert reported.is_empty()


def test_who_comes_late_gets_the_last_version_at_once(feed: Feed, source: Source) -> None:
    early, late = Told(), Told()
    feed.watch(source.subject, early)
    source.read("1")
    before = early.next()
    feed.watch(source.subject, late)
    assert late.next() == before
    source.read("2")
    assert late.next() == early.next() == "2"


def test_the_thread_ends_with_the_last_who_leaves_and_begins_anew(
    feed: Feed, source: Source
) -> None:
    one, other = Told(), Told()
    feed.watch(source.subject, one)
    feed.watch(source.subject, other)
    feed.leave(source.subject, one)
    source.read("1")
    assert other.next() == "1"
    assert one.is_empty()
    feed.leave(source.subject, other)
    source.end()
    assert eventually(lambda: running(source.subject.key) == 0, "the thread ends")
    feed.leave(source.subject, other)
    again = Told()
    fresh = Source()
    feed.watch(fresh.subject, again)
    fresh.read("2")
    assert again.next() == "2"
    fresh.end()


def test_an_error_while_reading_is_logged_and_reading_goes_on(
    feed: Feed, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    reported = Told()
    feed.watch(source.subject, reported)
    source.read("", KeyError("odd"))
    source.read("2")
    assert reported.next() == "2"
    assert "could not read the version of brokers/x" in caplog.text


def test_subjects_do_not_wait_for_each_other(feed: Feed, source: Source) -> None:
    frozen, reported = Source("brokers/frozen"), Told()
    feed.watch(frozen.subject, Told())
    feed.watch(source.subject, reported)
    source.read("1")
    assert reported.next() == "1"
    frozen.end()


def test_the_end_of_the_process_ends_every_thread(feed: Feed, source: Source) -> None:
    feed.watch(source.subject, Told())
    feed.end()
    source.end()
    assert eventually(lambda: running(source.subject.key) == 0, "the thread ends")
