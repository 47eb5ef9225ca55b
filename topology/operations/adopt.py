"""Topologies that others built in a broker's vhost, and their adoption without changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from topology import snapshots
from topology.broker.management.client import Management
from topology.content.text import count_of
from topology.models import Broker, State, Topology
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import User, take_over
from topology.patterns.chain.params import Params as ChainParams
from topology.patterns.chain.params import chain_of
from topology.patterns.names import describe_invisible
from topology.patterns.pattern import ParamsError, Pattern, Use
from topology.patterns.table import KINDS
from topology.provisioning.plan import Plan
from topology.provisioning.recognition import Departure, Found, departures, recognize
from topology.snapshot import Snapshot
from topology.structure.taps import describe_observation


@dataclass(frozen=True)
class Discovered:
    """A topology that was found, and the one of ours that it is, None where nobody manages it."""

    found: Found
    managed: Topology | None
    departures: Sequence[Departure]

    @property
    def pattern(self) -> Pattern:
        return KINDS[self.found.use.kind]

    @property
    def invisible(self) -> str:
        return describe_invisible(self.found.use.name)

    @property
    def is_adoptable(self) -> bool:
        return self.managed is None and self.found.plan is not None

    @property
    def notes(self) -> Sequence[str]:
        """What a chain is, and what of it cannot be observed, in sentences."""
        params = self.found.use.params
        if not isinstance(params, ChainParams):
            return ()
        chain = chain_of(params)
        return (chain.phrase, *describe_observation(chain))

    @property
    def missing(self) -> tuple[str, ...]:
        """What a whole one has besides, in words; notes where no plan names the things."""
        plan = self.found.plan
        if plan is None or not plan.changes or isinstance(self.found.use.params, ChainParams):
            return self.found.use.missing
        return tuple(change.title for change in plan.select("create"))

    @property
    def states(self) -> list[tuple[str, str]]:
        """How complete it is: (ok, warn, error, note or off; words), a pair per statement."""
        plan = self.found.plan
        untrue = len(self.found.untrue_names)
        named = [("warn", f"{count_of(untrue, 'name')} with a different time")] if untrue else []
        if plan is None:
            lacks = [("warn", f"{count_of(len(self.missing), 'object')} missing or different")]
            whole = named or [("ok", "no missing objects")]
            return [("off", "not adoptable"), *(lacks + named if self.missing else whole)]
        wrong = [one for one in self.departures if not one.is_made_up_for]
        made_up = len(self.departures) - len(wrong)
        notes = list(named)
        if isinstance(self.found.use.params, ChainParams) and self.missing:
            notes.append(("warn", f"{count_of(len(self.missing), 'object')} missing"))
        elif plan.changes and self.missing:
            notes.append(("warn", f"{len(self.missing)} of {len(plan.changes)} objects missing"))
        elif self.missing:
            notes.append(
                ("warn", f"{count_of(len(self.missing), 'queue')} different from the others")
            )
        if wrong:
            verb = "differs" if len(wrong) == 1 else "differ"
            notes.append(("error", f"{count_of(len(wrong), 'argument')} {verb}"))
        if made_up:
            notes.append(("note", f"{count_of(made_up, 'argument')} set by policy"))
        return notes or [("ok", "complete")]


def match_managed(
    broker: Broker, found: Sequence[Found], snapshot: Snapshot
) -> Sequence[Discovered]:
    """The same with what is known of each; two of one kind and title are one."""
    managed = _read_managed(broker)
    return [Discovered(one, managed.of(one.use), departures(one, snapshot)) for one in found]


def list_unmanaged(broker: Broker, found: Sequence[Found]) -> list[Found]:
    """The discovered topologies that are not managed."""
    managed = _read_managed(broker)
    return [one for one in found if managed.of(one.use) is None]


class _Managed:
    """The topologies of a broker."""

    def __init__(self, rows: Sequence[Topology]) -> None:
        self._rows = rows
        self._by_name = {(row.kind, row.title): row for row in rows}

    def of(self, use: Use) -> Topology | None:
        """The one that this use is. A chain is known by its delay queues: what it is called, and
        whether it retries, follows from what is around them."""
        if isinstance(use.params, ChainParams):
            rows = (self._by_queue.get(name) for name in use.params.queues)
            return next(filter(None, rows), None)
        return self._by_name.get((use.kind, title(use)))

    @cached_property
    def _by_queue(self) -> Mapping[str, Topology]:
        """Queue -> topology: delay queues of chains, and all queues of others."""
        found: dict[str, Topology] = {}
        for row in self._rows:
            with suppress(ParamsError):
                params = row.parsed
                names = (
                    params.queues
                    if isinstance(params, ChainParams)
                    else [queue.name for queue in row.pattern.definitions(params).queues]
                )
                found |= dict.fromkeys(names, row)
        return found


def _read_managed(broker: Broker) -> _Managed:
    """Read in full, because a broker's names may be invalid for the database."""
    return _Managed(list(Topology.objects.filter(broker=broker).exclude(state=State.DELETED)))


def title(use: Use) -> str:
    """What a topology of it is called."""
    return KINDS[use.kind].title(use.params) if use.params is not None else use.name


def preview(broker: Broker, kind: str, name: str) -> tuple[Use, Plan]:
    """The use of this kind and name, and what a whole one would have besides.

    Raises Refusal when there is none such, when no parameters rebuild it or when it is managed;
    BrokerError when the broker does not answer.
    """
    with Management(broker.address) as management:
        recognition = recognize(snapshots.for_action(broker, management, []))
    named = (one for one in recognition.found if (one.use.kind, one.use.name) == (kind, name))
    found = next(named, None)
    if found is None:
        raise Refusal(f"{broker.name} no longer has “{name}” of this pattern.")
    if found.plan is None:
        raise Refusal(
            f"Delayboard cannot adopt “{name}”. No parameters of the pattern produce the same "
            "objects."
        )
    if managed := _read_managed(broker).of(found.use):
        raise Refusal(f"Delayboard already manages “{name}” as the topology “{managed.name}”.")
    return found.use, found.plan


def adopt(user: User, broker: Broker, kind: str, name: str) -> tuple[Topology, Plan]:
    """Manage what `preview` finds from now on.

    The broker is looked at and not changed, nothing in it becomes ours, and nothing is recorded.
    Raises what `preview` does.
    """
    use, plan = preview(broker, kind, name)
    return take_over(user, broker, kind, use.params), plan
