"""The script of the demo: its flows of messages, its incidents, its weeks and its tour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from topology.patterns.pattern import Pattern
from topology.patterns.table import PATTERNS

DEMO_BROKER = "Demo broker"
REMINDERS, MAIL = "reminders", "mail"
# End of the name of a queue of dead letters.
DEAD = "-dead"


@dataclass(frozen=True)
class Flow:
    """A topology with its publisher and its consumer, who reads `queue`.

    Without `gives_back` no message fails, and each waits 2 to the power of `bits` seconds, or a
    delay that is on offer. Others fail at times: the consumer `rejects` or `returns` them, so that
    the broker brings them back, or `publishes` them into a delay itself; after `limit` failures it
    parks them in `dead`, or drops them. `target` is what the pattern routes to.
    """

    kind: str
    params: Any
    queue: str
    target: str
    gives_back: Literal["", "rejects", "returns", "publishes"] = ""
    limit: int = 0
    parks: bool = False
    bits: tuple[float, float] = (1.0, 8.5)

    @property
    def pattern(self) -> Pattern:
        return PATTERNS[self.kind]

    @property
    def dead(self) -> str:
        """Where failed messages are parked; "" where the pattern or nobody keeps them."""
        return f"{self.queue}{DEAD}" if self.parks else ""


def _reminders(kind: str, texts: Mapping[str, str], target: str, **own: Any) -> Flow:
    return Flow(kind, PATTERNS[kind].parse(texts), REMINDERS, target, **own)


def _work(kind: str, texts: Mapping[str, str], gives_back: Any, limit: int, **own: Any) -> Flow:
    params = PATTERNS[kind].parse(texts)
    (queue, *_) = PATTERNS[kind].targets(params)
    return Flow(kind, params, queue, queue, gives_back, limit, **own)


# Failures of a message that never succeeds: the broker gives up.
NEVER = 1_000_000
LEVELS = _reminders("delay_levels", {}, REMINDERS)
# Reminders with delays long enough for somebody to choose one and change it.
SHOP = _reminders(
    "delay_levels",
    {"preset": "own", "prefix": "shop", "levels": "18"},
    REMINDERS,
    bits=(5.5, 9.5),
)
HOLD = _reminders(
    "hold_queues", {"exchange": REMINDERS, "keys": MAIL, "delays": "10s, 30s, 2m"}, MAIL
)
ORDERS = _work("retry_pair", {"name": "orders", "delay": "15s"}, "rejects", 3, parks=True)
WEBHOOKS = _work(
    "delay_queues", {"queue": "webhooks", "delays": "10s, 1m"}, "publishes", 2, parks=True
)
FLOWS = (
    LEVELS,
    SHOP,
    HOLD,
    ORDERS,
    WEBHOOKS,
    _work("retry_loop", {"name": "sms", "delay": "20s"}, "rejects", 2),
    _work("retry_ladder", {"name": "invoices", "delays": "10s, 30s, 1m"}, "rejects", NEVER),
    _work("busy_wait", {"queue": "calls", "delays": "15s, 30s, 1m"}, "publishes", 3, parks=True),
    _work(
        "quorum_retry",
        {"name": "payments", "shortest": "5s", "longest": "20s", "limit": "4"},
        "returns",
        NEVER,
    ),
)

# Incidents: refunds are rejected again, returns have no binding, newsletters are lost.
REFUNDS, RETURNS, NEWSLETTER = "refunds", "returns", "newsletter"
PRICE_MISSING = "shop.PriceMissing"
# Days of the history, and the numbers (from 0) of the day of the release after which orders fail
# more often, and of the late night.
DAYS, RELEASE, LATE_NIGHT = 28, 19, 24
NIGHT_HOURS = (2, 4)
# Target of the demo: the late night uses up two thirds of what it allows.
TARGET_PERCENT = 97.0


class Step(NamedTuple):
    """A page of the tour."""

    view: str
    title: str
    text: str


TOUR = (
    Step(
        "now",
        "Now",
        "Problems come first, each with its remedy. If a destination has no binding, its messages "
        "are stuck: follow the link and restore the binding. Then RabbitMQ sends them on within "
        "three minutes.",
    ),
    Step(
        "topology:topologies",
        "Topologies",
        "Each line is a way to delay or retry messages. Open “orders” to see its diagram with the "
        "messages that wait.",
    ),
    Step(
        "analytics:scheduled",
        "Scheduled",
        "Every message that waits, and when it is due. Select one of shop.delay-level to cancel or "
        "reschedule it.",
    ),
    Step(
        "dead_letters",
        "Dead letters",
        f"Failed messages, grouped by cause. Open “{PRICE_MISSING}”: it has a note, an owner and "
        "an example, and you can replay it.",
    ),
    Step(
        "replays",
        "Replays",
        "One replay paused itself, because its first messages failed again. The others stay "
        "parked: none is lost.",
    ),
    Step(
        "topology:findings_overview",
        "Findings",
        f"Mistakes in the definitions, the worst first. The queue “{NEWSLETTER}” loses messages: "
        "its finding has the command that corrects it. Reports has four weeks of history.",
    ),
)
