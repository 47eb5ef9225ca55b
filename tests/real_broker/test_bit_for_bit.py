"""Published, parked, published back: equal in every byte that need not be stripped."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from delayboard.dead_letters.parked import store
from delayboard.models import ParkedMessage
from tests.brokers import Vhost
from tests.builders import address_of, make_broker
from tests.publishing import publisher
from tests.topology.amqp_entries import Reader, read_value, table_entries
from tests.topology.builders import NOON, a_queue
from tests.topology.stripping import stripped
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.pipeline import Publisher
from topology.broker.management.client import Management
from topology.broker.properties.read import read_properties
from topology.message import Message, Properties, Publish
from topology.models import Broker

pytestmark = pytest.mark.django_db(transaction=True)

YEAR_1, YEAR_9999 = -62_135_596_800 % 2**64, 253_402_300_799
MOMENTS = (0, 1_700_000_000, YEAR_9999, YEAR_9999 + 1, 2**62, 2**63, 2**64 - 1, YEAR_1)


def sized(data: bytes) -> bytes:
    return pack(">I", len(data)) + data


def short(text: str) -> bytes:
    data = text.encode()[:255].decode("utf-8", "ignore").encode()
    return bytes([len(data)]) + data


def fixed(tag: bytes, size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size).map(lambda data: tag + data)


# Every type that RabbitMQ reads (rabbit_binary_parser.erl), as the bytes that travel.
plain_values = st.one_of(
    *(fixed(tag, 1) for tag in (b"b", b"B")),
    *(fixed(tag, 2) for tag in (b"s", b"u")),
    *(fixed(tag, 4) for tag in (b"I", b"i")),
    fixed(b"l", 8),
    # RabbitMQ itself breaks the connection at what is no finite number.
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda n: b"f" + pack(">f", n)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda n: b"d" + pack(">d", n)),
    fixed(b"D", 5),
    st.sampled_from([b"t\x00", b"t\x01", b"V"]),
    st.sampled_from(MOMENTS).map(lambda seconds: b"T" + pack(">Q", seconds)),
    fixed(b"T", 8),
    st.binary(max_size=12).map(lambda data: b"S" + sized(data)),
    st.text(max_size=6).map(lambda text: b"S" + sized(text.encode())),
    st.binary(max_size=12).map(lambda data: b"x" + sized(data)),
)
names = st.text(max_size=5).map(lambda text: short("h-" + text))


def table(values: dict[bytes, bytes]) -> bytes:
    return sized(b"".join(name + value for name, value in values.items()))


values = st.recursive(
    plain_values,
    lambda inner: st.one_of(
        st.dictionaries(names, inner, max_size=3).map(lambda found: b"F" + table(found)),
        st.lists(inner, max_size=3).map(lambda found: b"A" + sized(b"".join(found))),
    ),
    max_leaves=8,
)
texts = st.text(max_size=20).map(short)
PIECES: dict[int, st.SearchStrategy[bytes]] = {
    15: texts,
    14: texts,
    13: st.dictionaries(names, values, max_size=5).map(table),
    12: st.sampled_from([b"\x01", b"\x02"]),
    11: st.integers(0, 255).map(lambda n: bytes([n])),
    10: texts,
    9: texts,
    8: st.just(short("3600000")),
    7: texts,
    6: st.sampled_from(MOMENTS).map(lambda seconds: pack(">Q", seconds)),
    5: texts,
    3: texts,
    2: texts,
}


@st.composite
def raw_properties(draw: st.DrawFn) -> bytes:
    """All properties but the user id, which the broker compares with whoever publishes."""
    there = draw(st.sets(st.sampled_from(sorted(PIECES))))
    flags = sum(1 << place for place in there)
    pieces = [draw(PIECES[place]) for place in sorted(there, reverse=True)]
    return pack(">H", flags) + b"".join(pieces)


def nested(levels: int) -> bytes:
    value = b"S" + sized(b"\xff\xfe")
    for _ in range(levels // 2):
        value = b"A" + sized(b"F" + table({short("h-a"): value}))
    return value


def every_type() -> bytes:
    headers = {
        short("h-byte"): b"b\x80",
        short("h-unsigned byte"): b"B\xff",
        short("h-short"): b"s\x80\x00",
        short("h-unsigned short"): b"u\xff\xff",
        short("h-int"): b"I\x80\x00\x00\x00",
        short("h-unsigned int"): b"i\xff\xff\xff\xff",
        short("h-long"): b"l" + b"\x80" + bytes(7),
        short("h-float"): b"f" + pack(">f", 3.7),
        short("h-double"): b"d" + pack(">d", -0.0),
        short("h-decimal"): b"D\x01" + pack(">i", 15),
        short("h-negative decimal"): b"D\xff" + pack(">i", -(2**31)),
        short("h-nothing"): b"V",
        short("h-true"): b"t\x01",
        short("h-text"): b"S" + sized("é\u202e\x00".encode()),
        short("h-no text"): b"S" + sized(b"\xff\xfe\x80"),
        short("h-bytes"): b"x" + sized(bytes(range(256))),
        short("h-nested"): nested(60),
    }
    for number, moment in enumerate(MOMENTS):
        headers[short(f"h-time {number}")] = b"T" + pack(">Q", moment)
    return pack(">H", 1 << 13) + table(headers)


def reported(properties: Properties) -> dict[str, Any]:
    """The bytes of all that is set; of tables without the order, which 4.x does not keep."""
    raw = properties.raw
    reader = Reader(raw)
    flags = reader.number(">H")
    found: dict[str, Any] = {}
    for place in sorted(PIECES, reverse=True):
        if not flags & 1 << place:
            continue
        if place == 13:
            found["headers"] = entries(reader.long_string())
        elif place in (12, 11):
            found[str(place)] = reader.take(1)
        elif place == 6:
            found["timestamp"] = reader.take(8)
        else:
            found[str(place)] = reader.short_string()
    assert reader.position == len(raw)
    if not found.get("headers"):
        found.pop("headers", None)
    return found


def entries(inner: bytes) -> dict[bytes, Any]:
    return {name: tagged(data[1 + len(name) :]) for name, _, data in table_entries(inner)}


def tagged(data: bytes) -> Any:
    if data[:1] == b"F":
        return "F", entries(data[5:])
    if data[:1] == b"A":
        reader, items = Reader(data[5:]), []
        while reader.position < len(reader.data):
            start = reader.position
            read_value(reader)
            items.append(tagged(reader.data[start : reader.position]))
        return "A", items
    return data


def taken(source: Consumer) -> Message:
    delivery = source.get()
    assert delivery is not None
    source.ack([delivery.tag])
    return delivery.message


def parked(broker: Broker, message: Message) -> Message:
    """Parked, and read from the database again."""
    with transaction.atomic():
        (row,) = store.put(broker, "dead", [message], at=NOON)
    return ParkedMessage.objects.select_related("body").get(pk=row.pk).message


def there_and_back(
    broker: Broker, channel: Publisher, source: Consumer, raw: bytes, body: bytes
) -> None:
    """Publish, take, park, publish back, take again; what came is what was sent, each time."""
    channel.publish(Publish("", "dead", read_properties(raw), body))
    first = taken(source)
    without = stripped(first.properties, {})
    assert reported(without) == reported(read_properties(raw))
    assert first.body == body
    kept = parked(broker, first)
    assert (kept.properties.raw, kept.body) == (first.properties.raw, body)
    assert kept.content_id == first.content_id
    channel.publish(Publish("", "dead", stripped(kept.properties, {}), kept.body))
    again = taken(source)
    assert reported(stripped(again.properties, {})) == reported(without)
    assert again.body == body
    assert again.content_id == first.content_id


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_whatever_amqp_can_carry_comes_back_as_it_was(vhost: Vhost, kind: str) -> None:
    broker = make_broker(vhost)
    address = address_of(vhost)
    with Management(address) as management:
        management.declare_queue(a_queue("dead", type=kind))
    with publisher(address, "test") as channel, getter(address, "dead") as source:

        @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
        @example(raw=b"\x00\x00", body=b"")
        @example(raw=every_type(), body=b"{}")
        @given(raw=raw_properties(), body=st.binary(max_size=200))
        def comes_back(raw: bytes, body: bytes) -> None:
            there_and_back(broker, channel, source, raw, body)

        comes_back()
        there_and_back(broker, channel, source, every_type(), bytes(range(256)) * 40_000)
