"""What the demo's traffic says when a part of it fails."""

from __future__ import annotations

from io import StringIO
from threading import Event

import pytest

from delayboard.management.commands import run_demo_traffic
from topology.broker.errors import OutcomeUnknown
from topology.models import Broker

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("failures", "said"),
    [(1, ""), (2, "The connection closed. The demo goes on in 0 seconds.\n")],
)
def test_a_part_that_fails_once_is_repeated_silently(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, failures: int, said: str
) -> None:
    monkeypatch.setattr(run_demo_traffic, "pause", lambda ends: 0.0)
    stop, tries = Event(), []

    def part(stop: Event) -> None:
        tries.append(1)
        if len(tries) <= failures:
            raise OutcomeUnknown("The connection closed.")
        stop.set()

    err = StringIO()
    run_demo_traffic.Command(stderr=err, no_color=True)._keep(part, broker, stop)
    assert (err.getvalue(), len(tries)) == (said, failures + 1)
