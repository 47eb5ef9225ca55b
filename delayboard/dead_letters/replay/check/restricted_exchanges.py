"""The exchanges to which not every message may be published; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from topology.definitions import DELAYED_TYPE, Definitions
from topology.message import Publish
from topology.provisioning.taps import breaks_stream_taps, tapped_exchanges
from topology.routing.matching.delayed_exchange import delay_in_exchange_ms


@dataclass(frozen=True)
class RestrictedExchanges:
    """Of all that a broker holds, taps included: stream taps of ours, and what keeps messages."""

    definitions: Definitions
    exchanges: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        delayed = {x.name for x in self.definitions.exchanges if x.type == DELAYED_TYPE}
        streamed = tapped_exchanges(self.definitions, by="stream")
        object.__setattr__(self, "exchanges", streamed | delayed)

    def explain_refusal(self, publish: Publish) -> str:
        """Why this message must not go to its exchange; "" when it may."""
        if publish.exchange not in self.exchanges:
            return ""
        why = breaks_stream_taps(self.definitions, publish)
        return why or explain_returned(self.definitions, publish)


def explain_returned(definitions: Definitions, publish: Publish) -> str:
    """Why an exchange would both keep this message and give it back; "" when it would not."""
    exchange = definitions.exchange(publish.exchange)
    if exchange is None or delay_in_exchange_ms(exchange, publish.properties.headers) == 0:
        return ""
    return (
        f"The exchange “{publish.exchange}” is of the type {exchange.type}: it would keep the "
        "message and give it back too. Replay it to a queue through the default exchange."
    )
