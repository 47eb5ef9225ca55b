"""The names that the publish form offers, from the definitions of the broker."""

from __future__ import annotations

from dataclasses import dataclass

from topology.definitions import Definitions
from topology.models import Topology
from topology.patterns.pattern import ParamsError

# A browser lists more of them slowly, and nobody reads them.
MOST = 200


@dataclass(frozen=True)
class Offers:
    """Destinations of the topology, exchanges, and routing keys of the exchange."""

    targets: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    routing_keys: tuple[str, ...] = ()


def make_offers(found: Definitions, topology: Topology | None, exchange: str) -> Offers:
    """`exchange` "" is the default exchange, which routes by names of queues."""
    found = found.without_taps().without_probes()
    queues = sorted(queue.name for queue in found.queues)
    exchanges = sorted(one.name for one in found.exchanges if one.name)
    bound = {one.routing_key for one in found.bindings if one.source == exchange}
    keys = sorted(key for key in bound if key and not set("*#") & set(key))
    return Offers(
        _targets(found, topology, [*queues, *exchanges]) if topology else (),
        tuple(exchanges[:MOST]),
        tuple((keys if exchange else queues)[:MOST]),
    )


def _targets(found: Definitions, topology: Topology, names: list[str]) -> tuple[str, ...]:
    """The destinations that the topology has, else the names that it can reach."""
    try:
        pattern, params = topology.pattern, topology.parsed
    except (ParamsError, KeyError):
        return ()
    if fixed := pattern.targets(params):
        return tuple(fixed[:MOST])
    fitting = (name for name in names if not pattern.target_problem(params, name, found))
    return tuple(name for name, _ in zip(fitting, range(MOST), strict=False))
