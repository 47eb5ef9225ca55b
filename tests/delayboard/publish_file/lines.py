"""Lines of a file, and a broker's stand-in that takes what they become."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from typing import Any

from delayboard.publishing.file_message import PLAIN
from delayboard.publishing.publish_file import FileReader, Report, Verdict, publish_file
from tests.topology.builders import NOON, a_queue, a_snapshot
from topology.broker.amqp.pipeline import CONFIRMED, Answer
from topology.broker.errors import BrokerError, NotFound, Unreachable
from topology.definitions import BrokerObject, Definitions
from topology.message import Publish
from topology.models import Topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels import pattern as delay_levels_pattern
from topology.patterns.delay_levels.pattern import delay_levels

LEVELS = delay_levels_params.Params("own", "shop", 8)
LONGEST = timedelta(seconds=255)


def a_line(destination: str = "orders", due: timedelta = LONGEST / 2, **values: Any) -> bytes:
    stated = {"destination": destination, "due_at": (NOON + due).isoformat(), "body": "{}"}
    return json.dumps({**stated, **values}).encode()


def text(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()


@dataclass
class Tally:
    """What is reported of lines."""

    verdicts: list[Verdict]

    @property
    def marks(self) -> Counter[str]:
        return Counter(one.mark for one in self.verdicts)

    @property
    def published(self) -> int:
        return sum(self.marks[one] for one in ("due", "waits")) - self.marks["lost"]

    @property
    def repeated(self) -> int:
        return sum(one.is_repeated for one in self.verdicts)


def read(levels: Topology, *lines: bytes) -> FileReader:
    return FileReader(levels, io.BytesIO(b"\n".join(lines)), PLAIN)


def publish(levels: Topology, *lines: bytes, report: Report = lambda _: None) -> tuple[Tally, str]:
    tally = Tally([])

    def take(verdict: Verdict) -> None:
        tally.verdicts.append(verdict)
        report(verdict)

    return tally, publish_file(None, read(levels, *lines), "file", take, rate=5000, stop=Event())


class Channel:
    """A pipeline that keeps what it is given, or fails for a destination."""

    is_broken = False

    def __init__(self) -> None:
        self.seen = a_snapshot(standing())
        self.errors: dict[str, Answer | BrokerError] = {}
        self.published: list[Publish] = []
        self.declared: list[BrokerObject] = []
        self._in_flight: list[tuple[Publish, Any]] = []

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def declare(self, definitions: Definitions) -> None:
        (binding,) = definitions.bindings
        error = self.errors.get(binding.destination)
        if isinstance(error, (NotFound, Unreachable)):
            raise error
        self.declared.append(binding)
        self.seen = a_snapshot(self.seen.definitions | definitions)

    def publish(self, publish: Publish, token: Any) -> None:
        self._in_flight.append((publish, token))

    def answers(self, seconds: float) -> list[tuple[Any, Answer]]:
        answered = []
        while self._in_flight:
            publish, token = self._in_flight.pop()
            target = delay_levels_pattern.split_key(LEVELS, publish.routing_key)[1]
            answer = self.errors.get(target, CONFIRMED)
            if isinstance(answer, BrokerError):
                raise answer
            if answer == CONFIRMED:
                self.published.append(publish)
            answered.append((token, answer))
        return answered

    def abandon(self) -> list[tuple[Any, Answer]]:
        return []

    @property
    def targets(self) -> list[str]:
        keys = (publish.routing_key for publish in self.published)
        return [delay_levels_pattern.split_key(LEVELS, key)[1] for key in keys]


def standing(*more: BrokerObject) -> Definitions:
    """The levels with the queues orders and sales; orders is bound."""
    bound = delay_levels.route(LEVELS, LONGEST, "orders").declares
    queues = Definitions.of([a_queue("orders"), a_queue("Retail.sales"), a_queue("sales"), *more])
    return delay_levels.definitions(LEVELS) | queues | bound
