"""Two temporary exchanges before two queues, where one binding decides which queue it is.

A queue gets one copy of a message, however many ways lead to it. So the exchange `.in` with the
alternate exchange `.held` takes the place of a queue's binding: while `.in` is bound to the old
queue, its messages go there, and while it is not, `.held` takes them into the new one. No message
takes both ways or none (rabbit_exchange.erl route1, 3.10.8 to 4.3.6;
tests/real_broker/test_interception.py). Every step may be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topology.broker.management.client import Management
from topology.definitions import Arguments, Binding, Definitions, Exchange


@dataclass(frozen=True)
class Detour:
    """From the queue `old` to the queue `new`; `name` begins the names of its exchanges.

    With `others`, an exchange, the new queue gets what bindings by headers lead from `.held` to it,
    and by routing keys from `.keys`, and `others` all else.
    """

    name: str
    old: str
    new: str
    others: str = ""

    @property
    def into(self) -> str:
        return f"{self.name}.in"

    @property
    def alternate(self) -> str:
        """The longest of its names."""
        return f"{self.name}.held"

    @property
    def by_key(self) -> str:
        return f"{self.name}.keys"

    @property
    def switch(self) -> Binding:
        """While it is there, messages go to the old queue."""
        return Binding(self.into, self.old, "")

    def entrance(self, binding: Binding) -> Binding:
        """What replaces a binding of the old queue."""
        return replace(binding, destination=self.into, destination_is_queue=False)

    @property
    def objects(self) -> Definitions:
        """What is added, but for the bindings that are switched."""
        into = Exchange(self.into, "fanout", arguments=_alternate(self.alternate))
        if self.others:
            by_headers = Exchange(self.alternate, "headers", arguments=_alternate(self.by_key))
            by_key = Exchange(self.by_key, "direct", arguments=_alternate(self.others))
            return Definitions.of([into, by_headers, by_key])
        held = Exchange(self.alternate, "fanout")
        return Definitions.of([held, into, Binding(self.alternate, self.new, "")])

    def enter(self, binding: Binding, management: Management) -> None:
        """Lead what this binding of the old queue takes through the detour."""
        management.bind(self.switch)
        management.bind(self.entrance(binding))
        management.unbind(binding)

    def remove(self, management: Management) -> None:
        for name in (self.into, self.alternate, *([self.by_key] if self.others else [])):
            management.delete_exchange(name)


def _alternate(exchange: str) -> Arguments:
    return Arguments({"alternate-exchange": exchange})
