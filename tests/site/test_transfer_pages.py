"""Exports of a topology, and the import of definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from tests.builders import make_broker
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Definitions, Exchange, Queue
from topology.exports.resources import raw_definitions
from topology.models import Broker, Role, Topology
from topology.operations.definitions_files import FORMATS

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("form", FORMATS)
def test_a_viewer_downloads_a_topology_in_each_format(pair: Topology, form: str) -> None:
    know(pair.broker)
    client = signed_in(Role.VIEWER, pair.broker)
    page = text_of(client.get(reverse("topology:topology_definition", args=[pair.slug])))
    address = f"{reverse('topology:topology_export', args=[pair.slug])}?format={form}"
    assert address in page
    answer = client.get(address)
    assert "orders-retry" in text_of(answer)
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["Content-Disposition"].startswith("attachment; filename*=UTF-8''orders.")


def test_an_unknown_format_is_not_found(pair: Topology) -> None:
    client = signed_in(Role.VIEWER, pair.broker)
    assert client.get(reverse("topology:topology_export", args=[pair.slug])).status_code == 404


def imported(broker: Broker, raw: bytes, **given: str) -> str:
    file = SimpleUploadedFile("definitions.json", raw)
    address = reverse("topology:definitions_import", args=[broker.slug])
    client = signed_in(Role.OPERATOR, broker)
    return text_of(client.post(address, {"file": file, **given}, follow=True))


def test_an_operator_imports_definitions_and_sees_the_plan(pair: Topology) -> None:
    other = make_broker(name="Other")
    know(other)
    raw = json.dumps(raw_definitions(pair.pattern.definitions(pair.parsed))).encode()
    text = imported(other, raw)
    assert "1 topology planned, 0 skipped. The broker is not changed." in text
    assert "<h2>Plan</h2>" in text
    assert Topology.objects.get(broker=other).kind == pair.kind
    assert "already exists" in imported(other, raw)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "Choose a file that is not empty."),
        (b"[1", "The file is not JSON."),
        (b"\xff", "The file is not JSON."),
        (b"[" * 100_000, "The file is not JSON."),
        (b"[]", "The file is no export of RabbitMQ definitions"),
        (b'{"queues": [{"name": 5}]}', "is not text."),
    ],
)
def test_what_is_no_export_is_refused_in_one_sentence(
    broker: Broker, raw: bytes, sentence: str
) -> None:
    know(broker)
    assert sentence in imported(broker, raw)


def test_a_tool_that_cannot_hold_an_object_is_named(pair: Topology, monkeypatch: Any) -> None:
    know(pair.broker)
    objects = Definitions.of([Exchange("x@y"), Queue("q")])
    monkeypatch.setattr(type(pair.pattern), "definitions", staticmethod(lambda params: objects))
    client = signed_in(Role.VIEWER, pair.broker)
    address = reverse("topology:topology_export", args=[pair.slug])
    answer = client.get(address, {"format": "terraform"})
    assert answer.status_code == 302
