"""A day of the event log, generated: many topologies, delays and retries, whose truth is known.

`python -m tests.bench.event_day FOLDER --events N` writes it as recorders would.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from analytics.log import hour_folder, make_folder

DAY = date(2026, 11, 20)
TOPOLOGIES = 20
DELAYS_MS = (1_000, 5_000, 30_000, 300_000, 3_600_000, 21_600_000)
SHARE_REDELIVERED, SHARE_LOST, SHARE_FAILED = 0.002, 0.001, 0.3
# The messages of this one have no id.
WITHOUT_ID = TOPOLOGIES - 1
SECOND_US, MINUTE_US, HOUR_US, DAY_US = 10**6, 60 * 10**6, 3_600 * 10**6, 86_400 * 10**6
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Message id, content id, delay in milliseconds, attempt.
Event: TypeAlias = tuple[str, str, int, int]


def write_day(folder: Path, events: int, day: date = DAY) -> int:
    """Write about so many events that begin on the day; how many lines there are."""
    begin_us = (day - EPOCH.date()).days * DAY_US
    lines = 0
    for number in range(TOPOLOGIES):
        by_hour: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for at_us, line in _topology(number, events // TOPOLOGIES, begin_us):
            by_hour[at_us // HOUR_US].append((at_us, line))
        for hour, timed in by_hour.items():
            timed.sort()
            lines += len(timed)
            place = hour_folder(folder, EPOCH + timedelta(hours=hour))
            make_folder(place)
            (place / f"tap.t{number:02}.0-1.jsonl").write_bytes(b"".join(line for _, line in timed))
    return lines


def _topology(number: int, events: int, begin_us: int) -> Iterator[tuple[int, bytes]]:
    """Its lines with the moment of their recording: every fourth topology retries, others delay."""
    chance = random.Random(number)
    line = _Lines(f"t{number:02}", is_retried=number % 4 == 0)
    written = message = 0
    while written < events:
        name = f"{number:02}-{message:08x}-4a8f-11ee-be56-0242ac120002"
        at_us = begin_us + chance.randrange(DAY_US)
        delay_ms = DELAYS_MS[1] if line.is_retried else chance.choice(DELAYS_MS)
        has_id = number != WITHOUT_ID
        # Of equal content are those of one minute.
        content = f"{message:032x}" if has_id else f"{at_us // MINUTE_US:032x}"
        attempts = 1
        while line.is_retried and attempts < 5 and chance.random() < SHARE_FAILED:
            attempts += 1
        for attempt in range(1, attempts + 1):
            late_us = int(chance.lognormvariate(1.5, 1.2) * 1000)
            out_us = at_us + delay_ms * 1000 + late_us
            event = (name if has_id else "", content, delay_ms, attempt)
            yield at_us, line.entry(event, at_us, begin_us)
            written += 1
            if chance.random() < SHARE_REDELIVERED:
                yield at_us, line.entry(event, at_us, begin_us, is_repeat=True)
                written += 1
            if chance.random() >= SHARE_LOST:
                yield out_us, line.exit(event, out_us, begin_us)
                written += 1
            at_us = out_us + 20_000
        message += 1


class _Lines:
    """The lines of one topology, made of texts: an object for each would cost ten times as much."""

    def __init__(self, slug: str, *, is_retried: bool) -> None:
        self.is_retried = is_retried
        self._slug = slug
        self._number = 0
        self._common = (
            f'"caught_up":true,"source":"tap","broker":"main","vhost":"/","topology":"{slug}",'
            f'"pattern":"{"retry_pair" if is_retried else "delay_levels"}",'
            f'"exchange":"{slug}-delay","routing_key":"{slug}"'
        )

    def entry(self, event: Event, at_us: int, died_at_us: int, *, is_repeat: bool = False) -> bytes:
        _, _, delay_ms, attempt = event
        due = f'"{_moment(at_us + delay_ms * 1000)}"'
        queue = f"{self._slug}-wait-{delay_ms}"
        death = (self._slug, "rejected", attempt)
        deaths = [death] if self.is_retried else []
        return self._line(
            "scheduled", queue, event, at_us, due, deaths, died_at_us, is_repeat=is_repeat
        )

    def exit(self, event: Event, at_us: int, died_at_us: int) -> bytes:
        _, _, delay_ms, attempt = event
        death = (f"{self._slug}-wait-{delay_ms}", "expired", attempt)
        deaths = [death, (self._slug, "rejected", attempt)] if self.is_retried else [death]
        return self._line("delivered", self._slug, event, at_us, "null", deaths, died_at_us)

    def _line(
        self,
        kind: str,
        queue: str,
        event: Event,
        at_us: int,
        due: str,
        deaths: Sequence[tuple[str, str, int]],
        died_at_us: int,
        *,
        is_repeat: bool = False,
    ) -> bytes:
        message_id, content_id, delay_ms, attempt = event
        self._number += 1
        at = _moment(at_us)
        death = deaths[0] if deaths else ("", "", 0)
        exception = "TimeoutError" if death[1] == "rejected" else ""
        headers = _headers(deaths, died_at_us) if deaths else "{}"
        return (
            f'{{"v":1,"event_id":"{self._slug}:{self._number}","kind":"{kind}","recorded_at":"{at}",'
            f'{self._common},"queue":"{queue}","destination":"{self._slug}",'
            f'"message_id":"{message_id}","correlation_id":"{message_id}",'
            f'"content_id":"{content_id}","requested_delay_ms":{delay_ms},"published_at":"{at}",'
            f'"published_at_source":"recorded","due_at":{due},"attempt":{attempt},"replay_id":"",'
            f'"exception_type":"{exception}","death_reason":"{death[1]}","death_queue":"{death[0]}",'
            f'"deaths":{death[2]},"redelivered":{"true" if is_repeat else "false"},'
            f'"size_bytes":512,"headers_json":"{headers}","tracking_id":"","published_by":"shop",'
            f'"content_type":"application/json","body_base64":"","properties_base64":"",'
            f'"failures":{_failures(deaths, died_at_us)},"publisher_version":""}}\n'
        ).encode()


def _failures(deaths: Sequence[tuple[str, str, int]], died_at_us: int) -> str:
    each = (
        f'{{"queue":"{queue}","reason":"{reason}","count":{count},'
        f'"began_s":{died_at_us // SECOND_US}}}'
        for queue, reason, count in deaths
        if reason != "expired"
    )
    return f"[{','.join(each)}]"


def _headers(deaths: Sequence[tuple[str, str, int]], died_at_us: int) -> str:
    """x-death as a JSON object within a JSON text."""
    died_at = died_at_us // SECOND_US
    each = (
        f'{{"count":{count},"reason":"{reason}","queue":"{queue}","time":{died_at}}}'
        for queue, reason, count in deaths
    )
    return f'{{"x-death":[{",".join(each)}]}}'.replace('"', '\\"')


def _moment(at_us: int) -> str:
    seconds, us = divmod(at_us, SECOND_US)
    return f"{_second(seconds)}.{us:06}Z"


@lru_cache(200_000)
def _second(seconds: int) -> str:
    return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.event_day")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=2_000_000)
    arguments = parser.parse_args()
    write_day(arguments.folder, arguments.events)


if __name__ == "__main__":
    main()
