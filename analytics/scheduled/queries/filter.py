"""The filter of scheduled messages: read from an address or a command, and written back.

Pure: times may be relative, and `now` is a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode

from analytics.search.query import Field, Query, QueryError
from analytics.search.query import parse as parse_query
from topology.delays import MomentError, read_moment

LONGEST_NAME = 255
# Fields of the query beside words and values of headers and bodies.
FIELDS = {
    "id": Field(column="message_id"),
    "correlation": Field(column="correlation_id"),
    "exchange": Field(column="exchange"),
    "key": Field(column="routing_key"),
    "queue": Field(column="queue"),
    "attempt": Field("number", "attempt"),
    "size": Field("size", "size"),
    "entered": Field("moment", "entered_at"),
}
# Names in an address, and of the command's options.
NAMES = ("topology", "destination", "from", "until", "text")


@dataclass(frozen=True)
class Filter:
    """Empty texts select everything. `broker` is a slug, which the reader looks up. `from_at` is
    inclusive, `until_at` is exclusive.

    `query` is what the text means. `from_text` and `until_text` are as typed, `problems` has a
    sentence for each invalid field: then nothing should be listed.
    """

    topology: str = ""
    destination: str = ""
    text: str = ""
    query: Query = field(default_factory=Query)
    broker: str = ""
    is_overdue: bool = False
    is_stuck: bool = False
    from_text: str = ""
    until_text: str = ""
    from_at: datetime | None = None
    until_at: datetime | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_narrowed(self) -> bool:
        """Whether it leaves out anything of its brokers."""
        return bool(self.as_values().keys() - {"broker"})

    def as_values(self) -> dict[str, str]:
        """The values that `parse` reads back; only those that are set."""
        values = {
            "broker": self.broker,
            "topology": self.topology,
            "destination": self.destination,
            "from": self.from_text,
            "until": self.until_text,
            "text": self.text,
            "overdue": "1" if self.is_overdue else "",
            "stuck": "1" if self.is_stuck else "",
        }
        return {name: value for name, value in values.items() if value}

    def url(self, **changes: str) -> str:
        """A query string of this filter, with changes; "?" alone for everything.

        `from_` means "from".
        """
        values = self.as_values() | {name.rstrip("_"): value for name, value in changes.items()}
        return "?" + urlencode({name: value for name, value in values.items() if value})


def parse(values: Mapping[str, str], now: datetime) -> Filter:
    """Read the values of a form or an address; invalid ones are kept and listed in `problems`."""
    typed = {name: values.get(name, "").strip() for name in NAMES}
    problems = {
        name: f"The text is longer than {LONGEST_NAME} characters. Shorten it."
        for name in ("topology", "destination")
        if len(typed[name]) > LONGEST_NAME
    }
    query = Query()
    try:
        query = parse_query(typed["text"], now, FIELDS)
    except QueryError as error:
        problems["text"] = str(error)
    moments: dict[str, datetime | None] = {}
    for name in ("from", "until"):
        try:
            moments[name] = read_moment(typed[name], now) if typed[name] else None
        except MomentError as error:
            moments[name] = None
            problems[name] = str(error)
    from_at, until_at = moments["from"], moments["until"]
    if from_at and until_at and from_at >= until_at:
        problems["until"] = "The end must be later than the start."
    return Filter(
        topology=typed["topology"],
        destination=typed["destination"],
        text=typed["text"],
        query=query,
        broker=values.get("broker", "").strip(),
        is_overdue=values.get("overdue", "") not in ("", "0"),
        is_stuck=values.get("stuck", "") not in ("", "0"),
        from_text=typed["from"],
        until_text=typed["until"],
        from_at=from_at,
        until_at=until_at,
        problems=problems,
    )


def written_moment(moment: datetime) -> str:
    """A time as `read_moment` reads it, to the second and short enough to be read by people."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
