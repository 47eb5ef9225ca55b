"""A topology for RabbitMQ, Terraform and Kubernetes."""

from __future__ import annotations

import re

import pytest
import yaml

from topology.broker.management.definitions_file import read_export
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.exports.resources import NotExportable, as_kubernetes, as_terraform, raw_definitions
from topology.patterns.pattern import Pattern
from topology.patterns.table import PATTERNS

every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=list(PATTERNS))
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def objects(pattern: Pattern) -> Definitions:
    return pattern.definitions(pattern.EXAMPLE)


@every_pattern
def test_exported_definitions_read_as_the_same_objects(pattern: Pattern) -> None:
    wanted = objects(pattern)
    read = read_export(raw_definitions(wanted))[""].declared
    assert all(read.get(obj.identity) is not None for obj in wanted)
    assert len(list(read.queues)) == len(list(wanted.queues))
    for queue in wanted.queues:
        assert read.queue(queue.name) == queue.with_type()


@every_pattern
def test_kubernetes_gets_one_resource_of_its_own_name_for_each_object(pattern: Pattern) -> None:
    wanted = objects(pattern)
    documents = list(yaml.safe_load_all(as_kubernetes(wanted, "shop")))
    names = [one["metadata"]["name"] for one in documents]
    assert len(set(names)) == len(names) == len(wanted)
    assert all(DNS_NAME.fullmatch(name) for name in names)
    for obj, one in zip(wanted, documents, strict=True):
        assert one["kind"] == type(obj).__name__
        assert one["spec"]["vhost"] == "shop"
        assert one["spec"].get("arguments", {}) == dict(obj.arguments)
        assert one["spec"]["rabbitmqClusterReference"] == {"name": "rabbitmq"}


# The fields of the operator's CustomResourceDefinitions (config/crd/bases, v1beta1).
_REFERENCE: dict[str, type] = {"vhost": str, "arguments": dict, "rabbitmqClusterReference": dict}
_OBJECT: dict[str, type] = {"name": str, "type": str, "durable": bool, "autoDelete": bool}
_BINDING: dict[str, type] = {
    "source": str,
    "destination": str,
    "destinationType": str,
    "routingKey": str,
}
_FIELDS = {"Queue": _OBJECT, "Exchange": _OBJECT, "Binding": _BINDING}


@every_pattern
def test_kubernetes_gets_the_fields_of_its_schema(pattern: Pattern) -> None:
    for one in yaml.safe_load_all(as_kubernetes(objects(pattern), "shop")):
        assert one["apiVersion"] == "rabbitmq.com/v1beta1"
        spec, schema = one["spec"], _FIELDS[one["kind"]]
        assert schema.keys() <= spec.keys()
        assert {name: type(value) for name, value in spec.items()}.items() <= (
            schema | _REFERENCE
        ).items()


# The arguments of the provider's resources, "required" or not, and those of their block `settings`
# (docs/resources/exchange.md, queue.md and binding.md of cyrilgdn/rabbitmq).
_OPTIONAL = {"durable": False, "auto_delete": False, "arguments": False}
_RESOURCES = {
    "rabbitmq_exchange": {"name": True, "vhost": False},
    "rabbitmq_queue": {"name": True, "vhost": False},
    "rabbitmq_binding": {
        "source": True,
        "vhost": True,
        "destination": True,
        "destination_type": True,
        "routing_key": False,
        "arguments": False,
        "arguments_json": False,
    },
}
_SETTINGS = {
    "rabbitmq_exchange": {"type": True, **_OPTIONAL},
    "rabbitmq_queue": {**_OPTIONAL, "arguments_json": False},
}
_RESOURCE = re.compile(r'^resource "(\w+)" "\w+" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^  settings \{\n(.*?)^  \}\n", re.MULTILINE | re.DOTALL)


@every_pattern
def test_terraform_gets_the_arguments_of_its_schema(pattern: Pattern) -> None:
    for kind, body in _RESOURCE.findall(as_terraform(objects(pattern), "shop")):
        (settings,) = _BLOCK.findall(body) or ("",)
        assert bool(settings) == (kind in _SETTINGS)
        assert_schema(_BLOCK.sub("", body), _RESOURCES[kind], indent=2)
        assert_schema(settings, _SETTINGS.get(kind, {}), indent=4)


def assert_schema(body: str, schema: dict[str, bool], *, indent: int) -> None:
    """It has all required arguments, each once, and none that is not known."""
    names = re.findall(rf"^ {{{indent}}}(\w+) =", body, re.MULTILINE)
    assert len(set(names)) == len(names)
    assert {name for name, is_required in schema.items() if is_required} <= set(names)
    assert set(names) <= schema.keys()


def test_a_queue_and_a_binding_for_kubernetes() -> None:
    wanted = Definitions.of([Queue("Ü \u0001: {x}"), Binding("a", "b", 'k"\n')])
    queue, binding = yaml.safe_load_all(as_kubernetes(wanted, "/"))
    assert queue["spec"]["name"] == "Ü \u0001: {x}"
    assert (queue["spec"]["type"], queue["spec"]["durable"]) == ("classic", True)
    assert (binding["spec"]["destinationType"], binding["spec"]["routingKey"]) == ("queue", 'k"\n')


@every_pattern
def test_terraform_gets_one_resource_of_its_own_label_for_each_object(pattern: Pattern) -> None:
    text = as_terraform(objects(pattern), "shop")
    labels = re.findall(r'^resource "(rabbitmq_\w+)" "([a-z0-9_]+)" \{$', text, re.MULTILINE)
    assert len(set(labels)) == len(labels) == len(objects(pattern))
    # A reference names a resource that is there.
    for kind, label in re.findall(r"= (rabbitmq_\w+)\.(\w+)\.name$", text, re.MULTILINE):
        assert (kind, label) in labels


def test_a_queue_for_terraform_keeps_numbers_and_holds_no_template() -> None:
    queue = Queue("${x} %{y}", arguments=Arguments({"x-message-ttl": 5, "x-queue-type": "quorum"}))
    text = as_terraform(Definitions.of([queue]), "/")
    assert '  name = "$${x} %%{y}"\n' in text
    stated = r"{\"x-message-ttl\": 5, \"x-queue-type\": \"quorum\"}"
    assert f'    arguments_json = "{stated}"\n' in text
    assert "    durable = true\n    auto_delete = false\n" in text


@pytest.mark.parametrize(
    "obj",
    [
        Exchange("x", internal=True),
        Exchange("x@y"),
        Exchange("x", arguments=Arguments({"n": 5})),
        Queue("q@v"),
        Binding("x", "q", "a/b"),
    ],
)
def test_what_the_terraform_provider_cannot_hold_is_refused(
    obj: Exchange | Queue | Binding,
) -> None:
    with pytest.raises(NotExportable):
        as_terraform(Definitions.of([obj]), "/")
    with pytest.raises(NotExportable):
        as_terraform(Definitions(), "shop@eu")
