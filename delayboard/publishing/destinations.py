"""Which destinations of delay levels many messages in a row may go to, and whose bindings are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from topology import snapshots
from topology.broker.errors import Blocked, Conflict, alarm_sentence
from topology.broker.management.client import Management
from topology.definitions import Definitions
from topology.message import Publish
from topology.models import Topology
from topology.operations.ownership import Refusal, owning
from topology.patterns.delay_levels.params import Params, delivery_name
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.pattern import ParamsError
from topology.provisioning.plan import conflict_sentences, make_plan
from topology.snapshot import Snapshot
from topology.structure.taps import lost_without_taps

# Seconds between two checks for a new destination, each of which costs the broker as much as a
# page.
CHECK_AGAIN_SECONDS = 5.0


def levels_problem(params: Params, snapshot: Snapshot) -> str:
    """Why messages cannot pass these levels in their current state, "" when they can."""
    plan = make_plan(delay_levels.definitions(params), snapshot)
    if plan.is_empty:
        return ""
    missing = [change.title for change in plan.select("create")]
    sentences = [f"There is no {title}." for title in missing[:3]] + conflict_sentences(plan)[:3]
    return f"The delay levels differ from their definition. Apply them again. {' '.join(sentences)}"


def destination_problem(params: Params, target: str, snapshot: Snapshot) -> str:
    """Why messages for it would go astray, "" when they would not."""
    definitions = snapshot.definitions
    if wrong := delay_levels.target_problem(params, target, definitions):
        return wrong
    try:
        route = delay_levels.route(params, timedelta(0), target)
    except ParamsError as error:
        return str(error)
    plan = make_plan(route.declares, snapshot)
    if not plan.is_applicable:
        return " ".join(conflict_sentences(plan))
    due = Publish(delivery_name(params), route.routing_key)
    if why := lost_without_taps(definitions | route.declares, due):
        return f"No queue receives the message when it is due: {why}."
    return ""


class Destinations:
    """Answers from a look at the broker that is at most CHECK_AGAIN_SECONDS old.

    What was taken since counts as bound, so that two destinations of which one is the dotted end
    of the other exclude each other also when both are new.
    """

    def __init__(self, topology: Topology) -> None:
        """Raises Refusal when the levels do not exist, BrokerError from the broker."""
        self.topology = topology
        self.unbound: set[str] = set()
        self._params: Params = topology.parsed
        self._taken = Definitions()
        self._ours: set[str] = set()
        self.check_again()

    def problem(self, target: str) -> str:
        """Why nothing may be sent to it, "" when it may. Raises what a look raises."""
        if self.is_old:
            self.check_again()
        if target not in self._problems:
            self._problems[target] = destination_problem(self._params, target, self._seen)
        return self._problems[target]

    @property
    def is_old(self) -> bool:
        """Whether the next answer needs another look."""
        return time.monotonic() - self._checked_at > CHECK_AGAIN_SECONDS

    def take(self, target: str) -> None:
        """Note that messages are on their way to the destination from now on."""
        declares = delay_levels.route(self._params, timedelta(0), target).declares
        if all(self._seen.definitions.get(obj.identity) for obj in declares):
            return
        self.unbound.add(target)
        self._taken |= declares
        self._count_taken()

    @contextmanager
    def owning(self, target: str, declares: Definitions) -> Iterator[Callable[[], None]]:
        """Own the objects as `owning` does, for messages to the destination; from the declaration
        on they count as on their way.

        Looks again the first time: another's destination may have come since. Raises Conflict,
        Blocked, and what a look raises.
        """
        if target not in self._ours:
            self.check_again()
            if problem := self.problem(target):
                raise Conflict(problem)
        if self._seen.alarms:
            raise Blocked(alarm_sentence(self._seen.alarms))
        if target in self._ours:
            yield lambda: None
            return
        with owning(self.topology, declares, self._seen.declared) as declared:

            def note() -> None:
                declared()
                self._ours.add(target)
                self.take(target)

            yield note

    def check_again(self) -> None:
        """Raises Refusal when the levels do not exist, BrokerError from the broker."""
        with Management(self.topology.broker.address) as management:
            objects = delay_levels.definitions(self._params)
            self._seen = snapshots.for_action(self.topology.broker, management, objects)
        self._checked_at = time.monotonic()
        if wrong := levels_problem(self._params, self._seen):
            raise Refusal(wrong)
        self._count_taken()

    def _count_taken(self) -> None:
        self._seen = replace(
            self._seen,
            definitions=self._seen.definitions | self._taken,
            declared=self._seen.declared | self._taken,
        )
        self._problems: dict[str, str] = {}
