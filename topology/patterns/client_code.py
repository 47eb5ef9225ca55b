"""Code of several client libraries that publishes along a route; pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.message import Route
from topology.patterns.delay_levels import params as level_params
from topology.patterns.pattern import ParamsError, Pattern

EXAMPLE_TARGET, EXAMPLE_DELAY = "orders", timedelta(seconds=10)


@dataclass(frozen=True)
class CodeExample:
    """`client` is the name of the library."""

    client: str
    code: str


def list_examples(pattern: Pattern, params: Any) -> list[CodeExample]:
    """Publishing one delayed message with each library; empty where a route is not permanent."""
    delay = next(iter(pattern.delays(params)), EXAMPLE_DELAY)
    target = next(iter(pattern.targets(params)), EXAMPLE_TARGET)
    try:
        route = pattern.route(params, delay, target)
    except ParamsError:
        return []
    if route.lease is not None or route.due_header or route.headers:
        return []
    binds = "".join(
        f"destination = await channel.get_{'queue' if one.destination_is_queue else 'exchange'}"
        f"({_text(one.destination)})\n"
        f"await destination.bind({_text(one.source)}, {_text(one.routing_key)})\n"
        for one in route.declares.bindings
    )
    exchange = (
        f"exchange = await channel.get_exchange({_text(route.exchange)})\n"
        if route.exchange
        else "exchange = channel.default_exchange\n"
    )
    code = (
        f"channel = await connection.channel(publisher_confirms=True)\n{binds}{exchange}"
        "message = aio_pika.Message(\n"
        f"    body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT\n"
        ")\n"
        f"await exchange.publish(message, {_text(route.routing_key)}, mandatory=True)\n"
    )
    found = [CodeExample("aio-pika", code), _spring(route), _amqplib(route)]
    if isinstance(params, level_params.Params):
        found = [*_of_preset(params.preset, target, delay), *found]
    return found


def _of_preset(preset: str, target: str, delay: timedelta) -> list[CodeExample]:
    seconds = f"{delay.total_seconds():g}"
    if preset == "celery":
        return [CodeExample("Celery", f"task.apply_async(countdown={seconds})\n")]
    if preset.startswith("nsb"):
        code = (
            "var options = new SendOptions();\n"
            f"options.SetDestination({_text(target)});\n"
            f"options.DelayDeliveryWith(TimeSpan.FromSeconds({seconds}));\n"
            "await session.Send(message, options);\n"
        )
        return [CodeExample("NServiceBus", code)]
    return []


def _spring(route: Route) -> CodeExample:
    binds = "".join(
        f"amqpAdmin.declareBinding(new Binding({_text(one.destination)}, "
        f"Binding.DestinationType.{'QUEUE' if one.destination_is_queue else 'EXCHANGE'},\n"
        f"    {_text(one.source)}, {_text(one.routing_key)}, null));\n"
        for one in route.declares.bindings
    )
    code = (
        f"{binds}rabbitTemplate.setMandatory(true);\n"
        f"rabbitTemplate.convertAndSend({_text(route.exchange)}, {_text(route.routing_key)}, body,"
        " message -> {\n"
        "    message.getMessageProperties().setDeliveryMode(MessageDeliveryMode.PERSISTENT);\n"
        "    return message;\n});\n"
    )
    return CodeExample("Spring AMQP", code)


def _amqplib(route: Route) -> CodeExample:
    binds = "".join(
        f"await channel.bind{'Queue' if one.destination_is_queue else 'Exchange'}"
        f"({_text(one.destination)}, {_text(one.source)}, {_text(one.routing_key)});\n"
        for one in route.declares.bindings
    )
    code = (
        "const channel = await connection.createConfirmChannel();\n"
        f"{binds}"
        f"channel.publish({_text(route.exchange)}, {_text(route.routing_key)}, body,\n"
        "  { persistent: true, mandatory: true });\n"
        "await channel.waitForConfirms();\n"
    )
    return CodeExample("amqplib", code)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
