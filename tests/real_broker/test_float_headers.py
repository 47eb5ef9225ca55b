"""A number in a header that is none: every broker closes the connection at it."""

from __future__ import annotations

import math
import struct
from contextlib import suppress

from delayboard.dead_letters.replay.edit_headers import EditError, Typed, edit_headers
from tests.brokers import Vhost
from tests.builders import address_of
from tests.topology.builders import a_queue
from topology.broker.amqp.pipeline import pipeline
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.broker.properties.read import read_properties
from topology.message import Publish

PLACES = ("plain", "table", "list")


def raw_of(tag: bytes, number: float, where: str) -> bytes:
    value = tag + struct.pack(">d" if tag == b"d" else ">f", number)
    if where == "list":
        value = b"A" + struct.pack(">I", len(value)) + value
    if where == "table":
        inner = b"\x01a" + value
        value = b"F" + struct.pack(">I", len(inner)) + inner
    entry = b"\x01n" + value
    return b"\x20\x00" + struct.pack(">I", len(entry)) + entry


def is_taken(vhost: Vhost, raw: bytes) -> bool:
    with suppress(BrokerError), pipeline(address_of(vhost), "test") as line:
        line.publish(Publish("", "q", read_properties(raw), b""), 1)
        while not (answers := line.answers(1)):
            pass
        return answers[0][1].kind == "confirmed"
    return False


def test_what_an_edit_takes_is_what_the_broker_takes(vhost: Vhost) -> None:
    with Management(address_of(vhost)) as management:
        management.declare_queue(a_queue("q"))
    for tag in (b"d", b"f"):
        for number in (math.nan, math.inf, -math.inf, 1.5):
            typed = {
                "plain": Typed("", repr(number)),
                "table": Typed("table", f'{{"a": {number}}}'.replace("inf", "Infinity")),
                "list": Typed("list", f"[{number}]".replace("nan", "NaN")),
            }
            for where in PLACES:
                try:
                    edit_headers(raw_of(tag, 1.0, "plain"), {"n": typed[where]})
                except EditError:
                    is_edited = False
                else:
                    is_edited = True
                taken = is_taken(vhost, raw_of(tag, number, where))
                assert taken == is_edited == math.isfinite(number), (tag, number, where)
