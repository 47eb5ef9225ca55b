"""Code of client libraries on the page of a topology."""

from __future__ import annotations

import pytest

from topology.patterns.client_code import list_examples
from topology.patterns.delay_levels import params as level_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.table import PATTERNS


@pytest.mark.parametrize("kind", PATTERNS)
def test_every_example_publishes_along_the_route(kind: str) -> None:
    pattern = PATTERNS[kind]
    for example in list_examples(pattern, pattern.EXAMPLE):
        assert example.code.endswith("\n")


@pytest.mark.parametrize(
    ("preset", "client"), [("celery", "Celery"), ("nsb-v2", "NServiceBus"), ("own", "aio-pika")]
)
def test_a_set_of_a_framework_begins_with_its_own_call(preset: str, client: str) -> None:
    params = level_params.Params(preset, "shop" if preset == "own" else "", 28)
    examples = list_examples(delay_levels, params)
    assert examples[0].client == client
    assert {one.client for one in examples} >= {"aio-pika", "Spring AMQP", "amqplib"}


@pytest.mark.parametrize(
    ("params", "lines"),
    [
        (
            level_params.Params("own", "shop", 4),
            {
                "aio-pika": 'await destination.bind("shop.delay-delivery", "#.orders")',
                "Spring AMQP": 'new Binding("orders", Binding.DestinationType.QUEUE,',
                "amqplib": 'channel.bindQueue("orders", "shop.delay-delivery", "#.orders")',
            },
        ),
        (
            level_params.Params("nsb-v2", destinations="exchanges"),
            {
                "aio-pika": 'destination = await channel.get_exchange("orders")',
                "Spring AMQP": 'new Binding("orders", Binding.DestinationType.EXCHANGE,',
                "amqplib": 'channel.bindExchange("orders", ',
            },
        ),
    ],
)
def test_a_free_destination_is_bound_before_the_publish(
    params: level_params.Params, lines: dict[str, str]
) -> None:
    code = {one.client: one.code for one in list_examples(delay_levels, params)}
    for client, line in lines.items():
        publish = next(word for word in ("convertAndSend", "publish(") if word in code[client])
        assert 0 <= code[client].find(line) < code[client].find(publish)
