"""The columns of lists that a person can leave out, and what each person has chosen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from delayboard.models import Preference

# List -> column that can be hidden -> label; what tells a row from others cannot.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "scheduled": {
        "topology": "Topology",
        "attempt": "Attempt",
        "delay": "Delay",
        "published": "Published",
        "queues": "Queues left",
        "size": "Size",
    },
    "retrying": {"reason": "Reason", "topology": "Topology", "delay": "Delay"},
    "dead_letters": {"published": "Published to", "trend": "Trend"},
    "parked_messages": {
        "published": "Published to",
        "deaths": "Deaths",
        "died": "Last death",
        "size": "Size",
    },
    "replays": {"selection": "Selection", "broker": "Broker", "prepared": "Prepared"},
}
# List -> columns shown at first, where more exist than fit beside each other.
SHOWN_AT_FIRST = {"scheduled": ("topology", "attempt", "delay")}


def read_columns(user: Any, name: str, asked: str | None = None) -> Collection[str]:
    """The columns of a list that the user sees, in no order.

    `asked` are those of the address, separated by commas, which go before the chosen ones.
    """
    if asked is not None:
        return choose_known(name, asked.split(","))
    found = Preference.objects.filter(user=user).values_list("columns", flat=True).first() or {}
    return choose_known(name, found.get(name, SHOWN_AT_FIRST.get(name, COLUMNS[name])))


def choose_known(name: str, chosen: Collection[str]) -> list[str]:
    """The columns of these that the list has, in its order."""
    return [one for one in COLUMNS[name] if one in chosen]


def choose_columns(user: Any, name: str, chosen: Collection[str]) -> None:
    """Store which columns of a list the user sees; unknown ones are left out."""
    row, _ = Preference.objects.get_or_create(user=user)
    row.columns = {**row.columns, name: choose_known(name, chosen)}
    row.save(update_fields=["columns"])
