"""What a route declares for a topology, written down as ours before the broker makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from topology.broker.errors import BrokerError, OutcomeUnknown
from topology.definitions import Definitions
from topology.models import Topology
from topology.operations.ownership import disown, own_declared


@contextmanager
def owning(
    topology: Topology, declares: Definitions, found: Definitions
) -> Iterator[Callable[[], None]]:
    """What of it is not `found` is ours from now on, and no longer when the broker refuses it.

    Hands out what to call once it is declared: what fails after that takes nothing back, and
    neither does OutcomeUnknown, after which it may be there.
    """
    fresh = own_declared(topology, declares, found)
    declared = Event()
    try:
        yield declared.set
    except OutcomeUnknown:
        raise
    except BrokerError:
        if not declared.is_set():
            disown(topology, fresh)
        raise
