"""What does exist in a broker's vhost, seen at one moment, with its live numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from topology.definitions import Arguments, Definitions

LONGEST_PART = 9


@dataclass(frozen=True)
class QueueNumbers:
    """Live numbers of one queue; None where the broker did not say.

    The broker counts every `statistics interval` (5 s by default), so these are up to
    that much older than the snapshot. Rates are messages per second. `published` counts all
    publishes since the broker counts; neither it nor `publish_rate` has what other queues send.
    """

    messages: int | None = None
    ready: int | None = None
    unacked: int | None = None
    consumers: int | None = None
    publish_rate: float | None = None
    deliver_rate: float | None = None
    ack_rate: float | None = None
    redeliver_rate: float | None = None
    head_at: datetime | None = None
    state: str = ""
    published: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """A vhost as it stood at `taken_at` (UTC).

    `definitions` holds policies folded into the arguments: what is in force, not only
    what was declared; `declared` is what the declarations said. `numbers` is by queue
    name. `policies` and `operator_policies` name those of each queue, `policy_arguments` what both
    give it, before its own arguments are asked. `doubts` are sentences on what could not be seen.
    `version` is the broker's, such as "3.10.8". `earlier` are the numbers at `earlier_at`, two
    minutes before at most; None where nobody looked then.
    """

    version: str
    taken_at: datetime
    definitions: Definitions
    declared: Definitions
    numbers: Mapping[str, QueueNumbers] = field(default_factory=dict)
    exchange_rates: Mapping[str, float] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    operator_policies: Mapping[str, str] = field(default_factory=dict)
    policy_arguments: Mapping[str, Arguments] = field(default_factory=dict)
    node: str = ""
    cluster: str = ""
    alarms: tuple[str, ...] = ()
    exchange_types: frozenset[str] = frozenset()
    poll_seconds: float = 0.0
    doubts: tuple[str, ...] = ()
    earlier: Mapping[str, QueueNumbers] = field(default_factory=dict)
    earlier_at: datetime | None = None

    @property
    def version_tuple(self) -> tuple[int, ...]:
        return version_numbers(self.version)

    @property
    def consumed(self) -> frozenset[str]:
        """The queues that have consumers."""
        return frozenset(name for name, numbers in self.numbers.items() if numbers.consumers)


def version_numbers(version: str) -> tuple[int, ...]:
    """A version cut at the first part that is no number: "4.1.0-rc.1" is (4, 1, 0).

    Python reads no number of thousands of digits, and no version has one.
    """
    numbers: list[int] = []
    for part in version.split("-")[0].split("."):
        if not part.isdecimal() or len(part) > LONGEST_PART:
            break
        numbers.append(int(part))
    return tuple(numbers)
