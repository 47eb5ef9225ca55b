"""What can go wrong with a broker, each as a sentence that an operator can act on.

BrokerError
├── Unreachable     nobody answered, or the answer was none of RabbitMQ's; try again later
├── Refused         credentials, permissions or the virtual host; trying again does not help
├── NotFound        an exchange, a queue or a page of the API is not there
├── Conflict        it exists with other arguments, or is in use
├── Blocked         an alarm: the broker takes no publishes until it has memory and disk again
├── OutcomeUnknown  the connection broke before the broker confirmed: published, or not
├── Unsupported     this broker cannot do that
├── AddressError    the address or its certificate cannot be used (topology.broker.address)
└── DecryptionError its password cannot be read (topology.models.secrets)
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class BrokerError(Exception):
    """A sentence for a person; `retry_helps`: the same call may succeed later."""

    retry_helps = False


class Unreachable(BrokerError):
    retry_helps = True


class Refused(BrokerError):
    pass


class NotFound(BrokerError):
    pass


class Conflict(BrokerError):
    pass


class Blocked(BrokerError):
    retry_helps = True


class OutcomeUnknown(BrokerError):
    retry_helps = True


class Unsupported(BrokerError):
    pass


NACKED = "RabbitMQ rejected the message because a queue refused it or failed. It may have arrived."


def unroutable_sentence(exchange: str, routing_key: str) -> str:
    """Why a mandatory message came back."""
    return (
        f"The exchange “{exchange or '(default)'}” has no queue for the key “{routing_key}”. "
        "RabbitMQ returned the message."
    )


_REMEDIES = {
    "memory": (
        "consume or delete messages, or give RabbitMQ more memory (vm_memory_high_watermark)"
    ),
    "disk": "free disk space (the limit is disk_free_limit)",
}


def alarm_sentence(alarms: Sequence[str] = ()) -> str:
    """What alarms such as "memory on rabbit@host" mean and what ends them; () when not known."""
    named = f" ({', '.join(alarms)})" if alarms else ""
    of = [remedy for kind, remedy in _REMEDIES.items() if any(a.startswith(kind) for a in alarms)]
    return (
        f"RabbitMQ has an alarm{named} and blocks publishes until the alarm ends. To end it, "
        f"{'; '.join(of) or 'free memory or disk space'}."
    )


# Refusal for a feature flag, as 3.10.8, 4.0.5 and 4.3.6 word it over AMQP and management API.
_FLAG_IS_OFF = re.compile(r"of type 'rabbit_(\w+)_queue'.*feature flag is disabled")
_QUEUE_TYPE = re.compile(r"unsupported queue type '([^']*)'")
_EXCHANGE_TYPE = re.compile(r"(?:unknown|invalid) exchange type '([^']*)'")
_ARGUMENT = re.compile(r"invalid arg '([^']*)' for queue .* of queue type rabbit_(\w+)_queue")


def refuse_unsupported(reason: str) -> Unsupported | None:
    """What this broker or its version cannot do, by the reason it gives; None for other reasons."""
    if found := _FLAG_IS_OFF.search(reason):
        return Unsupported(
            f"The feature flag {found[1]}_queue is not enabled, so RabbitMQ has no {found[1]} "
            "queues. Run `rabbitmqctl enable_feature_flag all`."
        )
    if found := _QUEUE_TYPE.search(reason):
        return Unsupported(
            f"This version of RabbitMQ has no queue type “{found[1]}”. Choose another type, or "
            "upgrade RabbitMQ."
        )
    if found := _EXCHANGE_TYPE.search(reason):
        return Unsupported(
            f"RabbitMQ has no exchange type “{found[1]}”. Enable the plugin, or choose another "
            "type."
        )
    if found := _ARGUMENT.search(reason):
        return Unsupported(
            f"In this version of RabbitMQ, a {found[2]} queue has no argument “{found[1]}”. "
            "Choose another queue type, or upgrade RabbitMQ."
        )
    return None
