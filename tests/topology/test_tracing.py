from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import responses

from tests.topology.builders import MANAGEMENT, an_address
from topology.broker.errors import Refused, Unsupported
from topology.broker.management.client import Management, path
from topology.broker.management.vhost_update import make_tracing_update

# As the management API of these versions answers.
OLD = {
    "description": "Orders",
    "tags": ["a,b", "c"],
    "default_queue_type": "undefined",
    "metadata": {"description": "Orders", "tags": ["a,b", "c"]},
    "tracing": False,
}
NEW = {
    "description": "Größe",
    "tags": ["ü"],
    "default_queue_type": "quorum",
    "protected_from_deletion": True,
    "metadata": {"description": "Größe", "tags": ["ü"], "default_queue_type": "quorum"},
    "tracing": False,
}
VHOST = MANAGEMENT + path("vhosts", "/")


@pytest.fixture
def api() -> Iterator[responses.RequestsMock]:
    with responses.RequestsMock() as mock:
        yield mock


def test_what_a_vhost_says_of_itself_is_said_again() -> None:
    assert make_tracing_update(OLD, on=True) == {
        "tracing": True,
        "description": "Orders",
        "tags": ["a,b", "c"],
    }
    assert make_tracing_update(NEW, on=False) == {
        "tracing": False,
        "description": "Größe",
        "tags": ["ü"],
        "default_queue_type": "quorum",
    }


@pytest.mark.parametrize("unstated", [None, "", "undefined"])
def test_a_queue_type_that_was_never_stated_stays_so(unstated: Any) -> None:
    metadata = {"description": "", "tags": [], "default_queue_type": unstated}
    body = make_tracing_update({"default_queue_type": "classic", "metadata": metadata}, on=True)
    assert body == {"tracing": True, "description": "", "tags": []}


def test_tags_that_would_come_out_garbled_are_not_sent() -> None:
    with pytest.raises(Unsupported, match="rabbitmqctl trace_on"):
        make_tracing_update({**OLD, "tags": ["Ã¼"]}, on=True)


def test_nothing_is_sent_where_nothing_changes(api: responses.RequestsMock) -> None:
    api.get(VHOST, json={**NEW, "tracing": True})
    with Management(an_address()) as management:
        assert management.trace(on=True) is False
        assert management.is_tracing()
    assert {call.request.method for call in api.calls} == {"GET"}


def test_the_switch_sends_the_rest_with_it(api: responses.RequestsMock) -> None:
    api.get(VHOST, json=NEW)
    api.put(VHOST, status=204)
    with Management(an_address()) as management:
        assert management.trace(on=True)
    sent = json.loads(api.calls[1].request.body or b"")
    assert sent == make_tracing_update(NEW, on=True)


@pytest.mark.parametrize(
    ("status", "reason", "sentence"),
    [
        (401, "Not administrator user", "Add the tag “administrator”"),
        (404, "Not Found", "The virtual host “/” does not exist"),
    ],
)
def test_what_is_refused_is_a_sentence(
    api: responses.RequestsMock, status: int, reason: str, sentence: str
) -> None:
    api.get(VHOST, status=status, json={"error": "x", "reason": reason})
    with Management(an_address()) as management, pytest.raises(Refused, match=sentence):
        management.trace(on=True)
