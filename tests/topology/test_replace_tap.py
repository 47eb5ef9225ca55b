"""Taps that are not replaced: the sentence says why, and nothing changes."""

from __future__ import annotations

import pytest
import responses

from tests.builders import make_broker, make_pair
from tests.topology.test_provision import takes_changes
from topology.models import State, Topology
from topology.operations.ownership import Refusal
from topology.operations.replace_tap import replace_tap

pytestmark = pytest.mark.django_db


@pytest.fixture
def stream() -> Topology:
    """As an earlier version made it; its tap is not in `owned`."""
    row = make_pair(make_broker(), tap_type="stream")
    Topology.objects.update(state=State.APPLIED)
    row.refresh_from_db()
    return row


def test_one_that_was_begun_is_applied_first(stream: Topology) -> None:
    Topology.objects.update(state=State.APPLYING)
    with pytest.raises(Refusal, match="Apply it first"):
        replace_tap(None, stream)


@responses.activate
def test_a_stream_that_we_did_not_create_is_not_deleted(stream: Topology) -> None:
    url = f"{stream.broker.management_url}/api/queues/nowhere/{stream.tap_queue}"
    responses.get(url, json={"name": stream.tap_queue, "type": "stream"})
    takes_changes()
    with pytest.raises(Refusal, match=f"did not create the stream tap “{stream.tap_queue}”"):
        replace_tap(None, stream)
    stream.refresh_from_db()
    assert stream.tap_type == "stream"
    assert not [call for call in responses.calls if call.request.method != "GET"]
