"""Headers as the libraries write them, and as nobody should."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.parked.failure import LONGEST, Failure, failure_of
from tests.delayboard.builders import a_death, a_message, deaths_header
from topology.broker.properties.read import build_properties
from topology.clients.describe import REPUBLISHED
from topology.deaths import History, read_history
from topology.message import Message, Properties

SPRING_TRACE = """\
org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener method \
'public void shop.Orders.on(shop.Placed)' threw exception
\tat org.springframework.amqp.rabbit.listener.adapter.MessagingMessageListenerAdapter.invoke(\
MessagingMessageListenerAdapter.java:274)
\t... 9 more
Caused by: java.lang.IllegalStateException: stock of 4711 is negative
\tat shop.Orders.on(Orders.java:42)
Caused by: java.sql.SQLException: gone
"""
SPRING = {
    "x-exception-stacktrace": SPRING_TRACE,
    "x-exception-message": "stock of 4711 is negative",
    "x-original-exchange": "orders",
    "x-original-routingKey": "orders.placed",
    "__TypeId__": "shop.Placed",
}
NSERVICEBUS = {
    "NServiceBus.FailedQ": "Sales",
    "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
    "NServiceBus.ExceptionInfo.Message": "The operation has timed out.",
    "NServiceBus.EnclosedMessageTypes": "Shop.PlaceOrder, Shop, Version=1.0.0.0, Culture=neutral, "
    "PublicKeyToken=null;Shop.IOrder, Shop, Version=1.0.0.0",
}
MASSTRANSIT = {
    "MT-Reason": "fault",
    "MT-Fault-ExceptionType": "System.InvalidOperationException",
    "MT-Fault-Message": "boom",
    "MT-Fault-InputAddress": "rabbitmq://rabbit.test/shop/submit%20order?temporary=true",
    "MT-Fault-MessageType": "Shop.SubmitOrder",
}
REBUS = {
    "rbs2-msg-type": "Shop.Ship, Shop",
    "rbs2-source-queue": "shipping",
    "rbs2-error-details": "1 unhandled exceptions: 09:17:12 +00:00: "
    "Rebus.Exceptions.RebusApplicationException: no truck",
}
CELERY = {"lang": "py", "task": "shop.tasks.ship", "id": "c6b5", "retries": 3}
WOLVERINE = {"exception-type": "System.DivideByZeroException", "message-type": "Shop.Divide"}


def test_the_property_type_counts_when_no_header_does() -> None:
    reported = failure_of(a_message(headers={}, type="Shop.Placed, Shop"), History(), "dead")
    assert reported.message_type == "Shop.Placed"
    assert failure(CELERY).message_type == "shop.tasks.ship"


def failure(headers: dict[str, Any], queue: str = "dead") -> Failure:
    message = a_message(headers=headers)
    return failure_of(message, read_history(message.headers), queue)


def test_a_death_that_was_no_expiry_says_where_it_failed() -> None:
    reported = failure(NSERVICEBUS | deaths_header(a_death("orders"), a_death("hold", "expired")))
    assert (reported.died_in, reported.reason, reported.exchange) == (
        "orders",
        "rejected",
        "orders",
    )
    assert reported.exception == "System.TimeoutException"


def test_what_was_delayed_and_then_published_on_failed_where_its_consumer_says() -> None:
    reported = failure(NSERVICEBUS | deaths_header(a_death("nsb.v2.delay-level-03", "expired")))
    assert (reported.died_in, reported.reason) == ("Sales", REPUBLISHED)
    assert reported.message_type == "Shop.PlaceOrder"


def test_what_only_expired_died_in_the_first_queue_that_it_expired_in() -> None:
    assert failure(deaths_header(a_death("hold", "expired"))).reason == "expired"
    assert failure({}) == Failure(parked_from="dead")


@pytest.mark.parametrize(
    ("headers", "is_recorded"),
    [
        ({}, False),
        (CELERY, False),
        (WOLVERINE, False),
        # Two queues can get what was published to one exchange with one key, or left one delay.
        (SPRING, False),
        (deaths_header(a_death("hold", "expired")), False),
        (NSERVICEBUS, True),
        (MASSTRANSIT, True),
        (REBUS, True),
        (deaths_header(a_death("orders")), True),
        (SPRING | deaths_header(a_death("orders")), True),
    ],
)
def test_where_no_queue_of_the_failure_is_recorded_that_of_the_dead_letter_is_part_of_the_cause(
    headers: dict[str, Any], is_recorded: bool
) -> None:
    one, other = failure(headers, "shop.error"), failure(headers, "billing.error")
    assert (one.fingerprint == other.fingerprint) == is_recorded
    assert one.parked_from == ("" if is_recorded else "shop.error")


def test_failures_differ_by_exception_its_message_and_type() -> None:
    name = "NServiceBus.ExceptionInfo.Message"
    first, same, said, other = (
        failure(NSERVICEBUS | changed).fingerprint
        for changed in (
            {name: "Order 17 is gone."},
            {name: "Order 18 is gone."},
            {name: "No such order."},
            {name: "Order 17 is gone.", "NServiceBus.ExceptionInfo.ExceptionType": "E"},
        )
    )
    assert first == same
    assert len({same, said, other}) == 3


NAMES = st.sampled_from(sorted({*SPRING, *NSERVICEBUS, *MASSTRANSIT, *REBUS, *WOLVERINE, "task"}))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(NAMES, ANYTHING), st.none() | st.text())
def test_whatever_headers_hold_a_failure_is_texts_that_fit(
    headers: dict[str, Any], kind: str | None
) -> None:
    message = Message("", "dead", Properties(headers=headers, type=kind), b"")
    reported = failure_of(message, read_history(headers), "dead")
    for text in (reported.died_in, reported.exchange, reported.exception, reported.message_type):
        assert "\x00" not in text
        text.encode()
        assert len(text) <= LONGEST
    assert len(reported.fingerprint) == 32


def test_a_long_trace_is_read_in_no_time() -> None:
    properties = build_properties({"rbs2-error-details": "a." * 100_000})
    assert failure(dict(properties.headers)).exception == ""
