"""The throughput of each topology in the last minutes, as the page Now shows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from django.utils import timezone

from analytics import minutes
from analytics.minutes import RECENT, SHOWN, Flow
from analytics.observation import observe
from delayboard.models import BackgroundTask
from delayboard.models.background_task import INDEX
from topology.graph.live_values import UNKNOWN, rate_text
from topology.models import Broker, State, Topology
from topology.structure.copies import Phase

SIDES: dict[str, Phase] = {"entered": "entry", "died": "entry", "left": "exit", "late": "exit"}
WORDS = {"entered": "in", "left": "out", "late": "late", "died": "dead-lettered"}
OBSERVATION: dict[frozenset[Phase], str] = {
    frozenset(): "OK",
    frozenset({"entry"}): "Entries not observed",
    frozenset({"exit"}): "Deliveries not observed",
    frozenset({"entry", "exit"}): "Entries and deliveries not observed",
}
# Delay above which a recorder is behind; shorter ones come and go with every batch.
BEHIND = timedelta(seconds=3)


@dataclass(frozen=True)
class FlowLine:
    """A topology and its last hour; `unknown` says why the newest numbers are missing.

    `not_observed` are the sides that are never observed: "entry" for messages in, "exit" for
    messages out.
    """

    topology: Topology
    flow: Flow
    unknown: str = ""
    not_observed: frozenset[Phase] = frozenset()
    recent_seconds: float = 60.0 * RECENT

    @property
    def key(self) -> str:
        """What its live values begin with."""
        return f"flow/{self.topology.slug}"

    @cached_property
    def numbers(self) -> dict[str, int | None]:
        """What passed in the last few minutes; None while it is not known."""
        recent = self.flow.recent._asdict()
        return {name: n if self._is_known(name) else None for name, n in recent.items()}

    @property
    def is_late(self) -> bool:
        return bool(self.numbers["late"])

    @property
    def rates(self) -> str:
        """How many entered and left a second, in the last few minutes."""
        numbers = (self.numbers["entered"], self.numbers["left"])
        rates = (None if one is None else one / self.recent_seconds for one in numbers)
        return " / ".join(rate_text(one).removesuffix("/s") for one in rates)

    @property
    def retried(self) -> str:
        """The share that entered after a failure, in the last hour."""
        return self._share("died", "entered")

    @property
    def late(self) -> str:
        """The share that left more than a second late, in the last hour."""
        return self._share("late", "left")

    def _share(self, part: str, whole: str) -> str:
        hour = self.flow.hour._asdict()
        if not self._is_known(part) or not hour[whole]:
            return UNKNOWN
        share = 100 * min(1.0, hour[part] / hour[whole])
        return "0 %" if not share else f"{share:.1f} %" if share >= 0.1 else "<0.1 %"

    def _is_known(self, name: str) -> bool:
        return not self.unknown and SIDES[name] not in self.not_observed

    @property
    def status(self) -> str:
        return self.unknown or OBSERVATION[self.not_observed]

    @property
    def mark(self) -> str:
        if self.unknown:
            return "late"
        return "" if self.not_observed else "done"

    @property
    def description(self) -> str:
        parts = [
            f"{number} {WORDS[name]}"
            for name, number in self.flow.hour._asdict().items()
            if SIDES[name] not in self.not_observed
        ]
        if not self.flow.minutes or not parts:
            return "No data for the last hour."
        sentence = f"Last hour: {', '.join(parts)}; at most {self.flow.most} a minute."
        missing = SHOWN - len(self.flow.minutes)
        return f"{sentence} No data for the last {missing} minutes." if missing else sentence

    @property
    def shown(self) -> tuple[str, ...]:
        """What is in the line of its topology."""
        return (self.rates, self.retried, self.late, self.description)


def flow_lines(
    brokers: Collection[Broker], background_tasks: Sequence[BackgroundTask], now: datetime
) -> list[FlowLine]:
    """The applied topologies of these brokers."""
    topologies = list(
        Topology.objects.filter(broker__in=brokers, state=State.APPLIED).select_related("broker")
    )
    flows = minutes.flows(topologies, now)
    observed = observe(topologies, now)
    counted_until = index_until(background_tasks, now)
    lines = []
    for one in topologies:
        seen, flow, unknown = observed[one.pk], flows[one.pk], ""
        if seen.is_silent:
            flow = flow.until(seen.silent_since)
            unknown = f"Not recorded since {_clock(seen.silent_since)}"
        elif counted_until is not None and seen.not_observed != frozenset(SIDES.values()):
            flow = flow.until(counted_until)
            unknown = f"Not counted since {_clock(counted_until)}"
        seconds = (now - flow.last_at + (RECENT - 1) * minutes.MINUTE).total_seconds()
        lines.append(FlowLine(one, flow, unknown, seen.not_observed, seconds))
    return lines


def index_until(background_tasks: Sequence[BackgroundTask], now: datetime) -> datetime | None:
    """The moment up to which the log is counted when that is not now; None when it is."""
    task = next((one for one in background_tasks if one.key == INDEX), None)
    if task is not None and task.is_late:
        return task.beat_at or task.started_at
    behind = find_lag(task) if task else timedelta(0)
    return now - behind if behind > BEHIND else None


def find_lag(background_task: BackgroundTask) -> timedelta:
    """The age of the task's input, as it reports it; zero without a report."""
    seconds = background_task.details.get("behind_seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return timedelta(0)
    return timedelta(seconds=min(max(seconds, 0), 10**9))


def _clock(moment: datetime | None) -> str:
    if moment is None:
        return "the topology was applied"
    local = timezone.localtime(moment)
    is_today = local.date() == timezone.localtime().date()
    return f"{local:%H:%M:%S %Z}" if is_today else f"{local:%Y-%m-%d %H:%M %Z}"
