"""Reads what libraries write into a failed message: exception, message type, origin.

Pure and tolerant: a header in another format than its library's is ignored. Each rule names the
library and the documentation of its header.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from topology.content.text import make_encodable
from topology.message import Headers, Message

# The part of a stack trace that is read: its first lines contain the class.
READ_CHARACTERS = 20_000
SEARCHED_CHARACTERS = 1_000
SPRING_NAMES = ("x-original-exchange", "x-original-routingKey")
ORIGIN_NAMES = frozenset(
    {
        *SPRING_NAMES,
        "x-exception-message",
        "NServiceBus.FailedQ",
        "MT-Fault-InputAddress",
        "rbs2-source-queue",
    }
)
# Spring wraps what a listener throws (ListenerExecutionFailedException of spring-rabbit).
SPRING_WRAPPER = "ListenerExecutionFailedException"
_CAUSED_BY = "Caused by: "
# A class's name with its package, as Java, .NET and Python write it.
_CLASS = re.compile(r"[^\W\d]\w*(?:[.$+][^\W\d]\w*)*")
_EXCEPTION = re.compile(r"[^\W\d]\w*(?:[.+][^\W\d]\w*)+Exception\b")


@dataclass(frozen=True)
class Origin:
    """The queue of a message that its consumer republished after a failure; "" when unknown.

    `exchange` and `routing_key` are those of its publish before.
    """

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""


def exception_of(headers: Headers) -> str:
    """The exception type of its failure, "" when no header has it."""
    return _first(headers, EXCEPTIONS)


def exception_message_of(headers: Headers) -> str:
    """The first line of the exception's message, "" when no header has it."""
    return _first(headers, MESSAGES)


def message_type_of(message: Message) -> str:
    """The message type according to its publisher, "" when unknown.

    Headers come before the AMQP property `type`, which everybody uses differently.
    """
    name = _first(message.headers, TYPES)
    return name or _name_of_type(message.properties.type or "")


def origin_of(headers: Headers) -> Origin | None:
    """Where a message without deaths of its own failed; None when no header has it.

    spring-rabbit, RepublishMessageRecoverer: x-original-exchange, x-original-routingKey, and
    x-exception-*; NServiceBus, “Error forwarding headers”: NServiceBus.FailedQ; MassTransit,
    MessageHeaders: MT-Fault-InputAddress; Rebus, Headers: rbs2-source-queue. The headers of
    spring-rabbit do not contain the queue.
    """
    if ORIGIN_NAMES.isdisjoint(headers):
        return None
    exchange, routing_key = (_text(headers, name) for name in SPRING_NAMES)
    queue = (
        _queue_of_failed(_text(headers, "NServiceBus.FailedQ"))
        or _queue_of_address(_text(headers, "MT-Fault-InputAddress"))
        or _text(headers, "rbs2-source-queue")
    )
    is_recorded = queue or any(name in headers for name in (*SPRING_NAMES, "x-exception-message"))
    return Origin(queue, exchange, routing_key) if is_recorded else None


def class_of_trace(trace: str) -> str:
    """The class at the beginning of a stack trace, or the cause that Spring's wrapper names."""
    lines = trace[:READ_CHARACTERS].splitlines()
    first = _class_of(lines[0]) if lines else ""
    if first.endswith(SPRING_WRAPPER):
        causes = (line.strip() for line in lines[1:])
        inner = (line[len(_CAUSED_BY) :] for line in causes if line.startswith(_CAUSED_BY))
        return next((name for name in map(_class_of, inner) if name), first)
    return first


def _class_of(line: str) -> str:
    found = _CLASS.match(line.strip())
    return found[0] if found else ""


def _exception_in(text: str) -> str:
    """The first name with a namespace that ends in Exception."""
    found = _EXCEPTION.search(text[:SEARCHED_CHARACTERS])
    return found[0] if found else ""


def _name_of_type(text: str) -> str:
    """Without the assembly, and of several the first: “Shop.Placed, Shop, Version=1;…”."""
    return text.split(";")[0].split(",")[0].strip()


def _name_of_urn(text: str) -> str:
    return _name_of_type(text).removeprefix("urn:message:")


def _first_line(text: str) -> str:
    lines = (" ".join(line.split()) for line in text[:READ_CHARACTERS].splitlines())
    return next(filter(None, lines), "")


def _message_of_trace(trace: str) -> str:
    """The text behind the class in the first line: “java.io.IOException: gone”."""
    first = _first_line(trace)
    if _class_of(first).endswith(SPRING_WRAPPER):
        return ""
    return first.partition(": ")[2]


Rule = tuple[str, Callable[[str], str]]

EXCEPTIONS: tuple[Rule, ...] = (
    # NServiceBus, “Error forwarding headers”: Type.FullName.
    ("NServiceBus.ExceptionInfo.ExceptionType", str.strip),
    # MassTransit, MessageHeaders.FaultExceptionType.
    ("MT-Fault-ExceptionType", str.strip),
    # Names that teams use beside Spring's x-exception-message.
    ("x-exception-type", str.strip),
    ("x-exception-class", str.strip),
    # spring-rabbit, RepublishMessageRecoverer.X_EXCEPTION_STACKTRACE.
    ("x-exception-stacktrace", class_of_trace),
    # Wolverine, DeadLetterQueueConstants.
    ("exception-type", str.strip),
    # Rebus, Headers.ErrorDetails: sentences and ToString() of the exceptions.
    ("rbs2-error-details", _exception_in),
)

MESSAGES: tuple[Rule, ...] = (
    # NServiceBus, “Error forwarding headers”.
    ("NServiceBus.ExceptionInfo.Message", _first_line),
    # MassTransit, MessageHeaders.FaultMessage.
    ("MT-Fault-Message", _first_line),
    # spring-rabbit, RepublishMessageRecoverer.X_EXCEPTION_MESSAGE and X_EXCEPTION_STACKTRACE.
    ("x-exception-message", _first_line),
    ("x-exception-stacktrace", _message_of_trace),
    # Wolverine, DeadLetterQueueConstants.
    ("exception-message", _first_line),
)

TYPES: tuple[Rule, ...] = (
    # NServiceBus, “Serialization headers”: assembly-qualified names, parted by semicolons.
    ("NServiceBus.EnclosedMessageTypes", _name_of_type),
    # MassTransit, MessageHeaders: "urn:message:Namespace:Type".
    ("MT-MessageType", _name_of_urn),
    ("MT-Fault-MessageType", _name_of_urn),
    # Rebus, Headers.Type.
    ("rbs2-msg-type", _name_of_type),
    # spring-amqp, AbstractJavaTypeMapper.DEFAULT_CLASSID_FIELD_NAME.
    ("__TypeId__", str.strip),
    # Celery, message protocol 2: the name of the task.
    ("task", str.strip),
    # CloudEvents, AMQP protocol binding: application properties "cloudEvents:type" (also with
    # "_" for ":"); "ce-type" and "ce_type" are those of HTTP and Kafka, which bridges keep.
    ("cloudEvents:type", str.strip),
    ("cloudEvents_type", str.strip),
    ("ce-type", str.strip),
    ("ce_type", str.strip),
    # Wolverine, EnvelopeConstants.MessageTypeKey.
    ("message-type", str.strip),
)


NAMES = frozenset(name for name, _ in (*EXCEPTIONS, *MESSAGES, *TYPES))


def _first(headers: Headers, rules: tuple[Rule, ...]) -> str:
    if NAMES.isdisjoint(headers):
        return ""
    texts = (read(text) for name, read in rules if (text := _text(headers, name)))
    return next((text for text in texts if text), "")


def _text(headers: Headers, name: str) -> str:
    """A header that is a text, or the bytes of one; "" otherwise."""
    value = headers.get(name)
    if isinstance(value, (bytes, bytearray)):
        return make_encodable(value)
    return value if isinstance(value, str) else ""


def _queue_of_failed(text: str) -> str:
    """MSMQ's addresses are "queue@machine"; RabbitMQ's have no machine."""
    return text.partition("@")[0].strip()


def _queue_of_address(text: str) -> str:
    """The queue of "rabbitmq://host/vhost/queue?durable=false"; "" of what is no address."""
    try:
        path = urlsplit(text).path
    except ValueError:
        return ""
    return unquote(path.rpartition("/")[2], errors="backslashreplace")
