"""Definitions as resources of other tools.

They are the Terraform provider cyrilgdn/rabbitmq (rabbitmq/resource_exchange.go, resource_queue.go
and resource_binding.go) and the Messaging Topology Operator of RabbitMQ for Kubernetes
(api/v1beta1/exchange_types.go, queue_types.go and binding_types.go).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from topology.definitions import (
    ArgumentValue,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Identity,
    Queue,
)

LONGEST_LABEL = 80
_HEAD = """terraform {
  required_providers {
    rabbitmq = {
      source = "cyrilgdn/rabbitmq"
    }
  }
}
"""
# Longest part of a DNS name (RFC 1123).
LONGEST_NAME = 63
Raw: TypeAlias = dict[str, Any]


class NotExportable(ValueError):
    """The tool cannot represent an object; the message says which and why in one sentence."""


def _name_resource(identity: Identity, separator: str, longest: int) -> str:
    """A name of a-z, digits and separators, the same for the same object.

    It ends in a digest, since several names of RabbitMQ may be alike without their signs.
    """
    readable = re.sub(r"[^a-z0-9]+", separator, "-".join(identity[:5]).lower()).strip(separator)
    digest = hashlib.sha256("\0".join(identity).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{readable[: longest - 9].strip(separator)}{separator}{digest}"


def as_terraform(objects: Definitions, vhost: str) -> str:
    """Raises NotExportable."""
    _check_name(vhost)
    blocks = [_HEAD, f'variable "vhost" {{\n  default = {_text(vhost)}\n}}\n']
    for obj in objects:
        match obj:
            case Exchange():
                blocks.append(_exchange(obj))
            case Queue():
                blocks.append(_queue(obj))
            case Binding():
                blocks.append(_binding(obj, objects))
    return "\n".join(blocks)


def _exchange(obj: Exchange) -> str:
    _check_name(obj.name)
    if obj.internal:
        raise NotExportable(
            f"The exchange “{obj.name}” is internal. The Terraform provider does not support "
            "internal exchanges."
        )
    if not all(isinstance(value, str) for value in obj.arguments.values()):
        raise NotExportable(
            f"The exchange “{obj.name}” has an argument that is not text. The Terraform provider "
            "supports only text arguments of exchanges."
        )
    settings = [f"type = {_text(obj.type)}", *_flags(obj.durable, obj.auto_delete)]
    if obj.arguments:
        pairs = (f"  {_text(key)} = {_text(str(v))}" for key, v in obj.arguments.items())
        settings += ["arguments = {", *pairs, "}"]
    return _resource("exchange", obj.identity, obj.name, settings)


def _queue(obj: Queue) -> str:
    _check_name(obj.name)
    settings = [*_flags(obj.durable, obj.auto_delete), *_arguments(obj.arguments)]
    return _resource("queue", obj.identity, obj.name, settings)


def _binding(obj: Binding, objects: Definitions) -> str:
    kind = "queue" if obj.destination_is_queue else "exchange"
    # The provider splits the address of a binding at slashes.
    for name in (obj.source, obj.destination, obj.routing_key):
        if "/" in name:
            raise NotExportable(
                f"“{name}” contains a slash. The Terraform provider does not support a slash in a "
                "binding."
            )
    lines = [
        "  vhost = var.vhost",
        f"  source = {_end(objects, ('exchange', obj.source))}",
        f"  destination = {_end(objects, (kind, obj.destination))}",
        f"  destination_type = {_text(kind)}",
        f"  routing_key = {_text(obj.routing_key)}",
        *(f"  {line}" for line in _arguments(obj.arguments)),
    ]
    return _block("binding", obj.identity, lines)


def _resource(kind: str, identity: Identity, name: str, settings: list[str]) -> str:
    lines = [f"  name = {_text(name)}", "  vhost = var.vhost", "  settings {"]
    return _block(kind, identity, [*lines, *(f"    {line}" for line in settings), "  }"])


def _block(kind: str, identity: Identity, lines: list[str]) -> str:
    head = f'resource "rabbitmq_{kind}" "{_name_resource(identity, "_", LONGEST_LABEL)}" {{'
    return "\n".join([head, *lines, "}", ""])


def _end(objects: Definitions, identity: Identity) -> str:
    """A reference, so that Terraform creates the object first; the name of an object of others."""
    if objects.get(identity) is None:
        return _text(identity[1])
    return f"rabbitmq_{identity[0]}.{_name_resource(identity, '_', LONGEST_LABEL)}.name"


def _flags(durable: bool, auto_delete: bool) -> Iterator[str]:
    yield f"durable = {json.dumps(durable)}"
    yield f"auto_delete = {json.dumps(auto_delete)}"


def _arguments(arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """Write arguments as JSON, which keeps numbers."""
    given = json.dumps(dict(arguments), ensure_ascii=False, sort_keys=True)
    return [f"arguments_json = {_text(given)}"] if arguments else []


def _check_name(name: str) -> None:
    """The provider splits the address of an exchange or a queue, NAME@VHOST, at this sign."""
    if "@" in name:
        raise NotExportable(
            f"“{name}” contains an @. The Terraform provider does not support @ in a name."
        )


def _text(value: str) -> str:
    """A literal: JSON's signs, and no template."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def as_kubernetes(objects: Definitions, vhost: str) -> str:
    """YAML, for a RabbitmqCluster of the name “rabbitmq”. Raises NotExportable."""
    documents = []
    for obj in objects:
        cluster = {"rabbitmqClusterReference": {"name": "rabbitmq"}}
        document = {
            "apiVersion": "rabbitmq.com/v1beta1",
            "kind": type(obj).__name__,
            "metadata": {"name": _name_resource(obj.identity, "-", LONGEST_NAME)},
            "spec": {"vhost": vhost, **_spec(obj), **cluster},
        }
        documents.append("\n".join(_lines(document)))
    return "\n---\n".join(documents) + "\n"


def _spec(obj: BrokerObject) -> dict[str, Any]:
    arguments = {"arguments": dict(obj.arguments)} if obj.arguments else {}
    match obj:
        case Exchange(internal=True):
            raise NotExportable(
                f"The exchange “{obj.name}” is internal. The Kubernetes topology operator does not "
                "support internal exchanges."
            )
        case Exchange() | Queue():
            lasts = {"durable": obj.durable, "autoDelete": obj.auto_delete}
            return {"name": obj.name, "type": obj.type, **lasts, **arguments}
        case Binding():
            kind = "queue" if obj.destination_is_queue else "exchange"
            end = {"destination": obj.destination, "destinationType": kind}
            return {"source": obj.source, **end, "routingKey": obj.routing_key, **arguments}


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Block style; texts in double quotes, in which YAML reads what JSON writes."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"


def raw_object(obj: Exchange | Queue) -> Raw:
    return {**vars(obj), "arguments": dict(obj.arguments)}


def raw_binding(obj: Binding) -> Raw:
    return {
        "source": obj.source,
        "destination": obj.destination,
        "destination_type": "queue" if obj.destination_is_queue else "exchange",
        "routing_key": obj.routing_key,
        "arguments": dict(obj.arguments),
    }


def raw_definitions(objects: Iterable[BrokerObject]) -> dict[str, list[Raw]]:
    """What `rabbitmqctl import_definitions --vhost` and the management page import."""
    everything = list(objects)
    return {
        "exchanges": [raw_object(one) for one in everything if isinstance(one, Exchange)],
        "queues": [raw_object(one) for one in everything if isinstance(one, Queue)],
        "bindings": [raw_binding(one) for one in everything if isinstance(one, Binding)],
    }
