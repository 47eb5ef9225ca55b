"""A binding that leads to another queue than before, and the switch from one to the other.

Through a `Detour` (tried with kills on 3.10, 4.0 and 4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256

from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.definitions import Binding, Definitions
from topology.patterns.names import LONGEST_NAME_BYTES, byte_length
from topology.transfer.detour import Detour


@dataclass(frozen=True)
class Reroute:
    """`binding` leads to `old` now and to its own destination afterwards."""

    binding: Binding
    old: str

    @classmethod
    def read(cls, old: str, stored: Sequence[str]) -> Reroute:
        source, key, queue = stored
        return cls(Binding(source, queue, key), old)

    @property
    def stored(self) -> list[str]:
        """What `read` reads, beside the old queue."""
        return [self.binding.source, self.binding.routing_key, self.binding.destination]

    @property
    def former(self) -> Binding:
        return replace(self.binding, destination=self.old)

    @property
    def detour(self) -> Detour:
        """Of this reroute alone: others may lead to the same queue."""
        digest = sha256("\0".join([*self.stored, self.old]).encode()).hexdigest()
        new = self.binding.destination
        return Detour(f"{new}.rerouting-{digest[:8]}", self.old, new)

    @property
    def steps(self) -> tuple[str, ...]:
        key, queue = self.binding.routing_key, self.binding.destination
        return (
            f"Switch the key “{key}” of “{self.binding.source}” from “{self.old}” to “{queue}” "
            "through a temporary exchange. Each message reaches one of the two queues once.",
            "Delete the temporary exchange.",
        )

    @property
    def refusal(self) -> str:
        if byte_length(self.detour.alternate) <= LONGEST_NAME_BYTES:
            return ""
        return (
            f"The name “{self.binding.destination}” is too long for a temporary exchange beside "
            "it. Create a topology with shorter names."
        )


def find_reroutes(leftover: Iterable[Binding], wanted: Definitions) -> Iterator[Reroute]:
    """One for each binding of `leftover` whose key leads to another queue in `wanted`."""
    for former in leftover:
        if not former.destination_is_queue or former.arguments:
            continue
        leading = [
            one
            for one in wanted.leaving(former.source)
            if one.routing_key == former.routing_key and one.destination_is_queue
        ]
        if len(leading) == 1 and not leading[0].arguments:
            yield Reroute(leading[0], former.destination)


def carry_out(reroute: Reroute, management: Management) -> None:
    """Switch to the new queue; may be called again after a kill. Raises BrokerError."""
    detour = reroute.detour
    management.declare(detour.objects)
    if _is_bound(reroute.former, management):
        detour.enter(reroute.former, management)
    with suppress(NotFound):
        management.unbind(detour.switch)
    management.bind(reroute.binding)
    with suppress(NotFound):
        management.unbind(detour.entrance(reroute.binding))
    detour.remove(management)


def _is_bound(binding: Binding, management: Management) -> bool:
    try:
        found = management.bindings_to_queue(binding.destination)
    except NotFound:
        return False
    ends = (binding.source, binding.routing_key)
    return any((raw.get("source"), raw.get("routing_key")) == ends for raw in found)
