"""Commands to copy, as a shell reads them; VHOST is set by a line before them."""

from __future__ import annotations

import json
import re
from shlex import quote

from topology.definitions import ArgumentValue

# The syntax of rabbitmqadmin 2, which comes with the documentation of RabbitMQ 4.
_ADMIN = 'rabbitmqadmin --vhost "$VHOST"'


# Words that a person has to replace.
TARGET_QUEUE, TARGET_KEY = "TARGET_QUEUE", "TARGET_KEY"


def has_blanks(command: str) -> bool:
    """Tell whether something in it is to be replaced."""
    return TARGET_QUEUE in command or TARGET_KEY in command


def set_vhost(name: str) -> str:
    return f"VHOST={quote(name)}"


def declare_exchange(name: str, kind: str = "direct") -> str:
    return f"{_ADMIN} declare exchange --name {quote(name)} --type {kind} --durable true"


def bind(source: str, queue: str = TARGET_QUEUE, key: str = TARGET_KEY) -> str:
    return (
        f"{_ADMIN} declare binding --source {quote(source)} --destination-type queue "
        f"--destination {quote(queue)} --routing-key {quote(key)}"
    )


def unbind(source: str, queue: str, key: str) -> str:
    return (
        f"{_ADMIN} delete binding --source {quote(source)} --destination-type queue "
        f"--destination {quote(queue)} --routing-key {quote(key)}"
    )


def set_policy(name: str, queue: str, **definition: ArgumentValue) -> str:
    """A policy for one queue; `dead_letter_exchange` stands for "dead-letter-exchange"."""
    given = json.dumps(
        {key.replace("_", "-"): value for key, value in definition.items()}, ensure_ascii=False
    )
    pattern = f"^{re.escape(queue)}$"
    return (
        f'rabbitmqctl set_policy -p "$VHOST" {quote(name)} {quote(pattern)} {quote(given)} '
        "--apply-to queues"
    )
