"""List the queues of a vhost in the cheapest way that has the needed numbers.

The details of ten thousand queues take RabbitMQ ten seconds and more (measured, 3.10.8), totals
two or three, and up to twenty on a busy machine. Above LARGE queues only totals and consumers are
requested. Source: RabbitMQ's management API, `disable_stats` and `enable_queue_totals`. Totals do
not include policies (tried, 3.10.8 to 4.3.6), so they are computed here from those of the vhost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from topology.broker.errors import Refused
from topology.broker.management.client import Management
from topology.broker.management.policies import put_in_force
from topology.content.text import count_text

Raw: TypeAlias = dict[str, Any]

LARGE = 1_000
# Seconds for a listing; no page waits for it.
LISTING_SECONDS = 25.0


def queues_of(
    overview: Mapping[str, Any], management: Management
) -> tuple[list[Raw], tuple[str, ...]]:
    """Every queue as the API returns it, and sentences on what it hides. Raises BrokerError."""
    if not is_large(overview) or management.count_queues() <= LARGE:
        return management.queues(), ()
    rows = management.queue_totals()
    consumers = Counter(
        str(queue.get("name", ""))
        for consumer in management.consumers()
        if isinstance(queue := consumer.get("queue"), Mapping)
    )
    for row in rows:
        row.setdefault("consumers", consumers[str(row.get("name", ""))])
    without_rates = (
        f"This virtual host has {count_text(len(rows))} queues, so Delayboard does not request "
        "their rates. Depths and consumers are available."
    )
    return rows, (without_rates, *_add_policies(rows, management))


def is_large(overview: Mapping[str, Any]) -> bool:
    """Whether the broker has many queues, by what the account sees of all virtual hosts; False
    where it keeps no statistics.
    """
    totals = overview.get("object_totals")
    if not isinstance(totals, Mapping):
        return False
    numbers = (totals.get(kind) for kind in ("queues", "exchanges"))
    return any(isinstance(number, int) and number > LARGE for number in numbers)


def _add_policies(rows: Sequence[Raw], management: Management) -> tuple[str, ...]:
    """Write what policies give into the rows; what stays unknown."""
    try:
        policies, limits = management.policies(), management.operator_policies()
    except Refused:
        return (
            f"For {count_text(len(rows))} queues, Delayboard reads only their own arguments. TTLs "
            "and dead-letter exchanges set by policies are missing here.",
        )
    unread = put_in_force(rows, policies, limits)
    return tuple(
        f"Delayboard cannot read the pattern of the policy “{name}”. The effect of this policy "
        "on queues is unknown."
        for name in unread
    )
