"""Copies of messages that passed an exchange, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Literal

from topology.deaths import History, read_history
from topology.definitions import Arguments
from topology.message import Headers

Phase = Literal["entry", "exit", "publish"]


@dataclass(frozen=True)
class Copy:
    """A tapped copy of a message: the exchange and key of its publish, and its headers.

    `at_ms` is when the copy was made, in UTC milliseconds; 0 when unknown. `body` is read only for
    delays that consumers keep.
    """

    exchange: str
    routing_key: str
    headers: Headers
    expiration: str | None = None
    at_ms: int = 0
    body: bytes = b""

    @cached_property
    def history(self) -> History:
        return read_history(self.headers)


@dataclass(frozen=True)
class Reading:
    """The meaning of a tapped copy.

    `entry`: it entered a delay; `exit`: it left one; `publish`: it was published without a delay.
    `attempt` numbers the trips through the delay from 1, and the exit of a trip has the number of
    its entry, so that the two can be paired; 0 for a `publish`, and for new messages where only
    retries are numbered. `death_queue` and `death_reason` are those of the death that led here, ""
    after a publish. `message_id` is the id in the body, where the library states no other.
    """

    phase: Phase
    destination: str
    queue: str
    delay: timedelta
    attempt: int
    death_queue: str = ""
    death_reason: str = ""
    message_id: str = ""


@dataclass(frozen=True)
class Tap:
    """Where copies can be taken: a binding's source, key and arguments.

    `phase` "entry" sees what begins to wait, "exit" what arrives; of the messages for
    `destination` alone, where one is given.
    """

    exchange: str
    routing_key: str
    phase: Literal["entry", "exit"]
    arguments: Arguments = field(default_factory=Arguments)
    destination: str = ""
