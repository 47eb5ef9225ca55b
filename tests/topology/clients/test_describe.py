"""Failed messages as each library writes them, and as nobody should."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.clients.conventions import (
    FACTS,
    LIBRARIES,
    ConventionError,
    built_in,
    parse_convention,
)
from topology.clients.describe import Description, describe, find_library
from topology.clients.forms import class_of_trace
from topology.clients.parts import Parts
from topology.clients.restart import explain_return, open_envelope, restart

SYMFONY = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\"


class Case(NamedTuple):
    """What happened: in which queue, by which exception, on which attempt, to which message."""

    queue: str
    key: str
    error: str
    said: str
    attempt: int
    id: str


CASES = [
    Case("orders", "order.placed", "shop.Errors.TimeoutException", "no answer in 30 s", 1, "a1"),
    Case("orders.eu", "order.eu", "java.lang.IllegalStateException", "stock: -3", 2, "b2"),
    Case("billing-7", "bill", "System.InvalidOperationException", "Nullable object", 4, "c3"),
    Case("submit order", "a b", "shop.NoSuchException", "“ungültig” – 東京", 3, "d4"),
    Case("q", "", "a.b.c.DeepException", "x", 6, "e5"),
    Case("Q.with.dots", "k.#", "My.Outer.Exception", "colon: in: text", 2, "f6"),
    Case("queue_with_underscore", "*.k", "com.acme.PaymentException", "402", 11, "g7"),
    Case("1", "1", "Shop.OneException", "only a number 1", 5, "h8"),
    Case("very-" * 20 + "long", "l" * 200, "p.LongException", "y" * 300, 7, "i9"),
    Case("UPPER", "UPPER.key", "Upper.CaseException", "TABS\tand  spaces", 3, "j0"),
]
Written = tuple[dict[str, Any], bytes, str]


def nservicebus(case: Case) -> Written:
    return (
        {
            "NServiceBus.MessageId": case.id,
            "NServiceBus.FailedQ": f"{case.queue}@HOST-1",
            "NServiceBus.ExceptionInfo.ExceptionType": case.error,
            "NServiceBus.ExceptionInfo.Message": case.said,
            "NServiceBus.ExceptionInfo.StackTrace": "   at Shop.Handle()",
            "NServiceBus.TimeOfFailure": "2026-11-20 10:11:12:123456 Z",
            "NServiceBus.EnclosedMessageTypes": "Shop.PlaceOrder, Shop;Shop.IOrder, Shop",
            "NServiceBus.Retries": str(case.attempt - 1),
        },
        b"<PlaceOrder/>",
        case.key,
    )


def masstransit(case: Case) -> Written:
    body = {
        "messageId": case.id,
        "messageType": ["urn:message:Shop:SubmitOrder"],
        "message": {"orderId": 7},
    }
    headers = {
        "MT-Reason": "fault",
        "MT-Fault-ExceptionType": case.error,
        "MT-Fault-Message": case.said,
        "MT-Fault-InputAddress": f"rabbitmq://host/shop/{case.queue.replace(' ', '%20')}?x=1",
        "MT-Fault-Timestamp": "2026-11-20T10:11:12.1234567Z",
        "MT-Fault-RetryCount": case.attempt - 1,
        "MT-Host-MachineName": "billing-host",
    }
    return headers, json.dumps(body).encode(), case.key


def rebus(case: Case) -> Written:
    details = f"1 unhandled exceptions: 09:17:12 +00:00: {case.error}: {case.said}"
    headers = {
        "rbs2-msg-id": case.id,
        "rbs2-source-queue": case.queue,
        "rbs2-error-details": details,
        "rbs2-msg-type": "Shop.Ship, Shop",
        "rbs2-delivery-count": str(case.attempt),
    }
    return headers, b"{}", case.key


def wolverine(case: Case) -> Written:
    headers = {
        "exception-type": case.error,
        "exception-message": case.said,
        "exception-stack": f"   at Shop.Handle() {case.said}",
        "failed-at": "1795169472123",
        "original-destination": f"rabbitmq://queue/{case.queue.replace(' ', '%20')}",
        "message-type": "Shop.Divide",
        "attempts": case.attempt,
        "id": case.id,
    }
    return headers, b"{}", case.key


def spring(case: Case) -> Written:
    trace = (
        "org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener threw\n"
        f"\tat a.B.c(B.java:1)\nCaused by: {case.error}: {case.said}\n\tat shop.Orders.on(O.java)"
    )
    headers = {
        "x-exception-stacktrace": trace,
        "x-exception-message": case.said,
        "x-original-exchange": "shop",
        "x-original-routingKey": case.key,
        "__TypeId__": "shop.Placed",
        "spring_returned_message_correlation": case.id,
    }
    return headers, b"{}", "error." + case.key


def rascal(case: Case) -> Written:
    state = {
        "originalQueue": case.queue,
        "originalExchange": "shop",
        "originalRoutingKey": case.key,
        "error": {"message": case.said, "code": case.error},
        "recovery": {
            case.queue: {"forwarded": case.attempt - 1, "immediateNack": True, "xDeath": {}}
        },
    }
    return {"rascal": state}, b"{}", case.queue


def celery(case: Case) -> Written:
    headers = {"lang": "py", "task": "shop.tasks.ship", "id": case.id, "retries": case.attempt - 1}
    return headers | {"root_id": case.id, "origin": "gen1@host"}, b"[[1], {}, {}]", case.key


def taskiq(case: Case) -> Written:
    labels = {"_retries": str(case.attempt - 1), "max_retries": "9"}
    body = {"task_id": case.id, "task_name": "shop:ship", "labels": labels, "args": []}
    headers = {"task_id": case.id, "task_name": "shop:ship", **labels}
    return headers, json.dumps(body).encode(), case.key


def easynetq(case: Case) -> Written:
    body = {
        "RoutingKey": case.key,
        "Exchange": "shop",
        "Queue": case.queue,
        "Exception": f"{case.error}: {case.said}\n   at Shop.Consume()",
        "Message": '{"Text":"Grüße"}',
        "DateTime": "2026-11-20T10:11:12.1234567Z",
        "BasicProperties": {"MessageId": case.id, "Type": "Shop.Placed, Shop", "AppId": "shop"},
    }
    return {}, json.dumps(body).encode(), "error"


def sneakers(case: Case) -> Written:
    body = {
        "error": case.said,
        "num_attempts": case.attempt,
        "failed_at": "2026-11-20T10:11:12Z",
        "payload": base64.encodebytes(b'{"order": 7}').decode(),
        "error_class": case.error,
        "error_message": case.said,
        "backtrace": "shop.rb:7:in `work', x.rb:1",
    }
    return {}, json.dumps(body).encode(), case.key


def kicks(case: Case) -> Written:
    _, body, key = sneakers(case)
    return {"retry_info": body.decode()}, b'{"order": 7}', key


def dramatiq(case: Case) -> Written:
    trace = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in work\n    raise x\n'
        f"{case.error}: {case.said}"
    )
    body = {
        "queue_name": f"{case.queue}.DQ",
        "actor_name": "work",
        "args": [1],
        "options": {"retries": case.attempt - 1, "traceback": trace, "max_retries": 20},
        "message_id": case.id,
    }
    return {}, json.dumps(body).encode(), case.key


def laravel(case: Case) -> Written:
    body = {
        "uuid": case.id,
        "displayName": "App\\Jobs\\Ship",
        "job": "Illuminate\\Queue\\CallQueuedHandler@call",
        "maxTries": 12,
        "data": {"command": "O:13"},
    }
    return {"laravel": {"attempts": case.attempt - 1}}, json.dumps(body).encode(), case.key


def symfony(case: Case) -> Written:
    def stamp(name: str, *stamps: dict[str, Any]) -> dict[str, str]:
        return {SYMFONY + name: json.dumps(stamps)}

    return (
        {"type": "App\\Message\\Ship"}
        | stamp("BusNameStamp", {"busName": "command.bus"})
        | stamp("ErrorDetailsStamp", {"exceptionClass": case.error, "exceptionMessage": case.said})
        | stamp(
            "RedeliveryStamp",
            {"retryCount": 0, "redeliveredAt": "2026-11-20T10:10:12+00:00"},
            {"retryCount": case.attempt - 1, "redeliveredAt": "2026-11-20T10:11:12+00:00"},
        )
        | stamp("TransportMessageIdStamp", {"id": case.id}),
        b"{}",
        case.key,
    )


def watermill(case: Case) -> Written:
    headers = {
        "reason_poisoned": case.said,
        "topic_poisoned": case.queue,
        "handler_poisoned": "ship",
        "subscriber_poisoned": "amqp.Subscriber",
        "_watermill_message_uuid": case.id,
    }
    return headers, b"{}", case.key


def golevelup(case: Case) -> Written:
    return {"x-retry-count": case.attempt - 1}, b"{}", case.key


def kombu(case: Case) -> Written:
    return {"retries": case.attempt - 1, "x-exception": case.error}, b"{}", case.key


# What each library states: its writer, the name, and the facts of a case.
STATES: list[tuple[Callable[[Case], Written], str, str]] = [
    (nservicebus, "NServiceBus", "queue error said attempt id"),
    (masstransit, "MassTransit", "queue error said attempt id"),
    (rebus, "Rebus", "queue error said attempt id"),
    (wolverine, "Wolverine", "queue error said attempt id"),
    (spring, "Spring AMQP", "exchange key error said id"),
    (rascal, "rascal", "queue exchange key error said attempt"),
    (celery, "Celery", "attempt id"),
    (taskiq, "taskiq", "attempt id"),
    (easynetq, "EasyNetQ", "queue exchange key error said id"),
    (sneakers, "Sneakers", "key error said attempt"),
    (kicks, "Sneakers", "key error said attempt"),
    (dramatiq, "dramatiq", "queue error said attempt id"),
    (laravel, "Laravel", "attempt id"),
    (symfony, "Symfony Messenger", "error said attempt id"),
    (watermill, "Watermill", "queue said id"),
    (golevelup, "golevelup", "attempt"),
    (kombu, "kombu", "error attempt"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.queue[:20])
@pytest.mark.parametrize(
    ("write", "library", "facts"), STATES, ids=lambda one: getattr(one, "__name__", str(one)[:24])
)
def test_what_each_library_states_of_a_failure(
    case: Case, write: Callable[[Case], Written], library: str, facts: str
) -> None:
    read = describe(*write(case))
    assert read is not None
    stated = {
        "queue": (read.queue, case.queue),
        "exchange": (read.exchange, "shop"),
        "key": (read.routing_key, case.key or None),
        "error": (read.exception_type, case.error),
        "said": (read.exception_message, " ".join(case.said.split())),
        "attempt": (read.attempt, case.attempt),
        "id": (read.message_id, case.id),
    }
    assert read.library == library
    for fact, (found, expected) in stated.items():
        assert found == (expected if fact in facts.split() else None), fact


@pytest.mark.parametrize("write", [nservicebus, masstransit, easynetq, sneakers, symfony])
def test_the_time_of_a_failure_is_in_utc(write: Callable[[Case], Written]) -> None:
    read = describe(*write(CASES[0]))
    assert read is not None
    assert read.failed_at is not None
    assert read.failed_at.replace(microsecond=0) == datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"MT-Reason": "fault", "MT-MessageType": "urn:message:Shop:Placed"}, "Shop:Placed"),
        ({"cloudEvents:type": "shop.order.placed"}, "shop.order.placed"),
        ({"ce-type": b"shop.order.placed"}, "shop.order.placed"),
    ],
)
def test_the_type_of_a_message(headers: dict[str, Any], kind: str) -> None:
    read = describe(headers)
    assert read is not None
    assert read.message_type == kind


@pytest.mark.parametrize(
    ("trace", "name"),
    [
        ("java.io.IOException: disk\n\tat a.B.c(B.java:1)", "java.io.IOException"),
        ("ValueError: invalid literal", "ValueError"),
        ("shop.Outer$InnerException\n\tat x", "shop.Outer$InnerException"),
        ("", ""),
        ("\n", ""),
        ("*** no class", ""),
    ],
)
def test_the_class_of_a_stack_trace(trace: str, name: str) -> None:
    assert class_of_trace(trace) == name


def test_a_message_of_no_library_has_no_description() -> None:
    assert describe({}, b"", "") is None
    assert describe({"x-death": []}, b'{"order": 7}', "orders") is None
    assert describe({"MT-Fault-InputAddress": "rabbitmq://[bad"}) == Description("MassTransit")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
STEPS = {
    step
    for one in built_in()
    for pointer in [
        *(fact.pointer for facts in one.facts.values() for fact in facts),
        *(pointer for row in one.known_by for pointer in row),
    ]
    for step in pointer[1:]
}
TABLES = st.recursive(
    ANYTHING,
    lambda inner: st.dictionaries(st.sampled_from(sorted(STEPS)), inner, max_size=4),
    max_leaves=8,
)


@given(TABLES, TABLES | st.binary(), ANYTHING)
def test_whatever_a_message_holds_nothing_is_raised(headers: Any, body: Any, key: Any) -> None:
    try:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
    except TypeError:
        text = repr(body).encode()
    for given_body in (body, text):
        read = describe(headers, given_body, key)
        for name in FACTS if read else ():
            value = getattr(read, name)
            if isinstance(value, str):
                value.encode()
    parts = Parts(headers, text, key)
    library = find_library(parts)
    if library is not None and isinstance(headers, dict):
        explain_return(headers)
        again = restart(library, headers, text)
        assert (again.body is text) or any(edit.place.startswith("/body") for edit in again.edits)
        open_envelope(library, text)


def test_a_table_within_itself_and_a_huge_text_are_read_in_no_time() -> None:
    own: dict[str, Any] = {}
    own["rascal"] = own
    assert describe(own) == Description("rascal")
    deep = b"[" * 200_000 + b"]" * 200_000
    assert describe({}, deep) is None
    assert describe({"rbs2-error-details": "a." * 1_000_000}) is not None


def find(name: str) -> Any:
    return next(one for one in built_in() if one.name == name)


def test_a_restart_takes_away_what_counts_and_nothing_else() -> None:
    headers, body, _ = celery(CASES[3])
    again = restart(find("Celery"), headers, body)
    assert again.headers == headers | {"retries": 0}
    assert again.body is body
    assert [(edit.place, edit.before) for edit in again.edits] == [("/headers/retries", 2)]
    assert restart(find("Celery"), again.headers, body).edits == ()
    headers, body, _ = dramatiq(CASES[3])
    again = restart(find("dramatiq"), headers, body)
    assert json.loads(again.body)["options"] == {"max_retries": 20}
    assert json.loads(again.body)["message_id"] == "d4"


def test_a_mark_that_sends_it_straight_back_is_seen_and_goes() -> None:
    headers, body, _ = rascal(CASES[1])
    assert explain_return(headers).startswith("rascal rejects this message at once")
    again = restart(find("rascal"), headers, body)
    assert explain_return(again.headers) == ""
    assert again.headers["rascal"]["originalQueue"] == "orders.eu"
    assert headers["rascal"]["recovery"]


def test_an_envelope_gives_the_message_inside_bit_for_bit() -> None:
    _, body, _ = easynetq(CASES[0])
    opened = open_envelope(find("EasyNetQ"), body)
    assert opened is not None
    assert opened[0] == '{"Text":"Grüße"}'.encode()
    assert opened[1]["Type"] == "Shop.Placed, Shop"
    _, body, _ = sneakers(CASES[0])
    assert open_envelope(find("Sneakers"), body) == (b'{"order": 7}', {})
    assert open_envelope(find("Sneakers"), b'{"payload": "no base64!"}') is None
    assert open_envelope(find("Celery"), body) is None


def test_each_library_is_described_by_its_file() -> None:
    assert len(built_in()) == len(LIBRARIES)
    for one in built_in():
        assert one.name
        assert one.source
        assert one.known_by or one.note


OWN = """
name = "shop"
known_by = [["/headers/x-src-queue"]]
[facts]
queue = "/headers/x-src-queue"
attempt = "/headers/x-tries | failures"
"""


def test_an_operators_own_convention_comes_first() -> None:
    own = parse_convention(OWN)
    headers = {"x-src-queue": "orders", "x-tries": "2", "x-retry-count": 7, "x-exception": "E"}
    read = describe(headers, own=[own])
    assert read == replace(Description("shop", queue="orders", attempt=3), exception_type="E")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name = ", "not TOML"),
        ('name = ""', "Enter the name"),
        ('name = "a"\nsteps = 1', "“steps” is not a part"),
        ('name = "a"\n[facts]\ncolour = "/headers/x"', "“colour” is not a fact"),
        ('name = "a"\n[facts]\nqueue = "headers/x"', "is not a pointer"),
        ('name = "a"\n[facts]\nqueue = "/headers/x | base17"', "“base17” is not a form"),
        ('name = "a"\nfacts = 7', "`facts` is a table"),
        ('name = "a"\nknown_by = [[7]]', "“7” is not a pointer"),
        ('name = "a"\n[envelope]\nbody = "/body/x"\nencoding = "gzip"', "`text` or `base64`"),
    ],
)
def test_a_text_that_is_no_convention_is_refused_in_a_sentence(text: str, why: str) -> None:
    with pytest.raises(ConventionError, match=why):
        parse_convention(text)
