from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from analytics.events import FIELDS, EventError, MessageEvent, decode, encode
from analytics.importing.staging import PROBLEM_MARK, NoTable, lines_of_table
from tests.analytics.builders import NOON, an_entry, an_event, ms
from tests.analytics.importing.forms import as_csv

ODD = an_entry(
    at=NOON + ms(0.042),
    routing_key='a,"b"',
    correlation_id="over\r\ntwo\nlines",
    headers_json='{"a":"ü"}',
    published_at=NOON,
    redelivered=True,
    deaths=-3,
    failures=({"queue": "a,b", "reason": "rejected", "count": 1, "began_s": None},),
)


def lines(text: str) -> list[bytes]:
    return list(lines_of_table(io.StringIO(text, newline="")))


def test_every_field_comes_back_from_a_table() -> None:
    events = [an_event(), ODD, an_entry("m2")]
    found = [decode(line) for line in lines(as_csv(events)) if line]
    assert found == events


def test_a_line_stands_where_its_row_begins() -> None:
    first, odd, last = an_event(), ODD, an_entry("m2")
    text = as_csv([first, odd]) + "\r\n" + as_csv([last], header=False)
    found = lines(text)
    assert [number for number, line in enumerate(found, start=1) if line] == [2, 3, 7]
    assert len(found) == len(text.splitlines())


@pytest.mark.parametrize(
    ("column", "cell", "why"),
    [
        ("deaths", "1.0", "deaths must be a integer"),
        ("deaths", " 1", "deaths must be a integer"),
        ("caught_up", "yes", "caught_up must be a boolean"),
        ("recorded_at", "2026-11-20 12:00", "recorded_at has no time zone"),
        ("recorded_at", "", "has no field recorded_at"),
        ("failures", "[", "failures must be a list of failures"),
    ],
)
def test_a_cell_that_is_none_of_its_field_is_refused_with_it(
    column: str, cell: str, why: str
) -> None:
    row = dict.fromkeys(FIELDS, "") | {
        name: str(value) for name, value in plain(an_event()).items()
    }
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, FIELDS)
    writer.writeheader()
    writer.writerow(row | {column: cell})
    with pytest.raises(EventError, match=why):
        decode(lines(out.getvalue())[1])


def plain(event: MessageEvent) -> dict[str, object]:
    return {
        "event_id": event.event_id,
        "v": 1,
        "kind": event.kind,
        "recorded_at": event.recorded_at.isoformat(),
        "caught_up": True,
        "source": "tap",
        "broker": "main",
    }


def test_columns_in_another_order_too_few_or_unknown_ones_do_not_matter() -> None:
    (_, line) = lines(
        "extra,kind,event_id,recorded_at,broker,source,caught_up\r\n"
        "x,died,e1,2026-11-20T12:00:00Z,main,tap,True\r\n"
    )
    event = decode(line)
    assert (event.kind, event.event_id, event.recorded_at) == ("died", "e1", NOON)
    assert encode(replace(event, v=1)) == encode(event)


def test_a_row_of_another_width_or_with_a_broken_quote_is_a_problem_of_its_own() -> None:
    found = lines('event_id,kind,recorded_at\n1,2\n"a"b,c,d\n1,2,3\n"never ends,\n,\n')
    assert found[1] == PROBLEM_MARK + b"The row has 2 cells, but the header has 3."
    assert found[2].startswith(PROBLEM_MARK + b"The row is not readable")
    assert found[3].startswith(b"{")
    assert found[4].startswith(PROBLEM_MARK)


@pytest.mark.parametrize("text", ["", "a,b\n", '"\n'])
def test_what_has_not_the_columns_is_no_table(text: str) -> None:
    with pytest.raises(NoTable):
        lines(text)
