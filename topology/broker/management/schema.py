"""The objects in the management API's answers, checked field by field before anything reads them.

A name of another form than RabbitMQ's refuses the answer: nothing may act on a name that was made
up from it. A number that no queue can have is not known. Pure.
"""

from __future__ import annotations

from typing import Any

from topology.broker.errors import Unreachable

# Fields that are short strings of AMQP 0-9-1. The name of a policy has no such limit.
_NAMES = ("name", "source", "destination", "routing_key")
LONGEST_NAME_BYTES = 255
_OBJECTS = ("arguments", "message_stats", "effective_policy_definition", "definition")
_COUNTS = (
    *("messages", "messages_ready", "messages_unacknowledged", "message_bytes"),
    *("consumers", "total_count"),
)
# Largest number that is a known one: no database and no queue holds more.
_MOST = 2**63 - 1
_OTHER = (
    "The management API sent an unexpected answer. Check for a proxy between Delayboard and "
    "RabbitMQ."
)


def read_object(value: Any) -> dict[str, Any]:
    """The object with its known fields checked. Raises Unreachable."""
    if not isinstance(value, dict):
        raise Unreachable(_OTHER)
    for field in _NAMES:
        name = value.get(field, "")
        if not isinstance(name, str):
            raise _explain_field(field, "is not text")
        is_long = len(name) > LONGEST_NAME_BYTES or len(name.encode()) > LONGEST_NAME_BYTES
        if is_long and "apply-to" not in value:
            raise _explain_field(field, f"has more than {LONGEST_NAME_BYTES} bytes")
    for read, fields in ((_object, _OBJECTS), (_count, _COUNTS)):
        value |= {field: read(field, value[field]) for field in fields if field in value}
    if stats := value.get("message_stats"):
        value["message_stats"] = {
            name: part if isinstance(part, dict) else _drop_unknown(part)
            for name, part in stats.items()
        }
    return value


def read_objects(value: Any) -> list[dict[str, Any]]:
    """A list of such objects. Raises Unreachable."""
    if not isinstance(value, list):
        raise Unreachable(_OTHER)
    return [read_object(item) for item in value]


def _object(field: str, value: Any) -> dict[str, Any]:
    """An empty list is an object without members: so RabbitMQ 3.10 writes it."""
    if isinstance(value, dict):
        return value
    if value is None or value == [] or value == "":
        return {}
    raise _explain_field(field, "is not an object")


def _count(field: str, value: Any) -> int | None:
    if value not in (None, "") and not _is_number(value):
        raise _explain_field(field, "is not a number")
    count = _drop_unknown(value)
    return count if isinstance(count, int) else None


def _drop_unknown(value: Any) -> Any:
    """The value, None for a number below zero or beyond 64 bits."""
    return None if _is_number(value) and not 0 <= value <= _MOST else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _explain_field(field: str, what: str) -> Unreachable:
    return Unreachable(
        f"The management API sent an object whose “{field}” {what}, which RabbitMQ never sends. "
        "Check what answers at this address."
    )
