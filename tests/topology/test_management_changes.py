from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import responses

from tests.topology.builders import MANAGEMENT, an_address
from topology.broker.errors import (
    Conflict,
)
from topology.broker.management.client import Management, path
from topology.definitions import Arguments, Binding, Exchange, Queue


@pytest.fixture
def api() -> Iterator[responses.RequestsMock]:
    with responses.RequestsMock() as mock:
        yield mock


@pytest.fixture
def management() -> Iterator[Management]:
    with Management(an_address()) as session:
        yield session


def url(*parts: str) -> str:
    return MANAGEMENT + path(*parts)


def test_a_declaration_states_everything(
    api: responses.RequestsMock, management: Management
) -> None:
    api.put(url("exchanges", "/", "x/y"), status=201)
    api.put(url("queues", "/", "q"), status=204)
    api.post(url("bindings", "/", "e", "x/y", "q", "q"), status=201)
    api.post(url("bindings", "/", "e", "x/y", "e", "z"), status=201)
    arguments = Arguments({"x-message-ttl": 5})
    management.declare_exchange(Exchange("x/y", "topic", internal=True))
    management.declare_queue(Queue("q", arguments=arguments))
    management.bind(Binding("x/y", "q", "k", arguments=arguments))
    management.bind(Binding("x/y", "z", "k", destination_is_queue=False))
    sent = [json.loads(call.request.body or b"") for call in api.calls]
    assert sent == [
        {"type": "topic", "durable": True, "auto_delete": False, "internal": True, "arguments": {}},
        {"durable": True, "auto_delete": False, "arguments": {"x-message-ttl": 5}},
        {"routing_key": "k", "arguments": {"x-message-ttl": 5}},
        {"routing_key": "k", "arguments": {}},
    ]


def test_unbinding_deletes_the_one_binding_of_that_key_and_arguments(
    api: responses.RequestsMock, management: Management
) -> None:
    whole = url("bindings", "/", "e", "x", "q", "q")
    found = [
        {"routing_key": "k", "arguments": {}, "properties_key": "k"},
        {"routing_key": "k", "arguments": {"a": 1}, "properties_key": "k~h/1"},
        {"routing_key": "", "arguments": {}, "properties_key": "~"},
    ]
    api.get(whole, json=found)
    api.delete(f"{whole}/k~h%2F1", status=204)
    management.unbind(Binding("x", "q", "k", arguments=Arguments({"a": 1})))


def test_what_is_gone_already_needs_no_deleting(
    api: responses.RequestsMock, management: Management
) -> None:
    for parts in (("queues", "/", "q"), ("exchanges", "/", "x")):
        api.delete(url(*parts), status=404, json={"error": "Object Not Found"})
    management.delete_queue("q", only_if_empty=False)
    management.delete_exchange("x")
    assert [call.request.method for call in api.calls] == ["DELETE", "DELETE"]


def test_a_queue_that_holds_messages_is_kept_and_the_sentence_names_it(
    api: responses.RequestsMock, management: Management
) -> None:
    condition = {"if-empty": "true"}
    api.delete(
        url("queues", "/", "q"),
        status=400,
        json={"reason": "queue 'q' is not empty"},
        match=[responses.matchers.query_param_matcher(condition)],
    )
    with pytest.raises(
        Conflict,
        match=r"Delayboard did not delete the queue “q”\. RabbitMQ reported: queue 'q' is not",
    ):
        management.delete_queue("q", only_if_empty=True)


def test_one_queue_is_asked_for_by_name(
    api: responses.RequestsMock, management: Management
) -> None:
    api.get(url("queues", "/", "q"), json={"name": "q"})
    assert management.queue("q") == {"name": "q"}
