"""What pages say of a broker that is being read for the first time."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from tests.builders import eventually
from tests.site.page_setup import pages, signed_in, text_of
from tests.topology.broker.slow import Slow, slow
from topology import snapshots
from topology.models import Broker, Role, Topology

__all__ = ["slow"]

pytestmark = pytest.mark.django_db
FILLED_BY_FEED = ["topology:broker", "topology:topology", "dead_letters", "dead_letter_queue"]
FETCHED_ANEW = ["topology:vhost", "topology:discovered", "topology:trace_route"]


def being_read(broker: Broker) -> None:
    """Forget it and look anew, until it has answered to something."""

    def is_answered() -> bool:
        poll = snapshots._polls.get(broker.pk)
        return poll is not None and poll.is_answered

    snapshots.forget(broker.pk)
    snapshots.fresh(broker)
    eventually(is_answered, "it answers")


def shown(text: str, part: str) -> bool:
    """Whether the notice of this name is there and not hidden."""
    found = re.search(f"<[^>]* {part}[^>]*>", text)
    assert found, part
    return " hidden" not in found[0]


@pytest.mark.parametrize("name", FILLED_BY_FEED + FETCHED_ANEW)
def test_a_page_says_that_it_is_being_read_and_nothing_of_trouble_or_emptiness(
    pair: Topology, slow: Slow, name: str
) -> None:
    client = signed_in(Role.ADMIN)
    address = pages(pair)[name]
    being_read(pair.broker)
    text = text_of(client.get(address))
    assert shown(text, "data-live-reading")
    assert not shown(text, "data-live-trouble")
    assert not shown(text, 'class="age"')
    assert "Loading Test broker.</strong>" in text
    assert "The broker answers. The first read is in progress " in text
    assert "Without JavaScript, reload the page in a few seconds." in text
    assert "does not answer" not in text
    assert "data-stale" not in text
    assert "No queue" not in text


@pytest.mark.parametrize("name", FILLED_BY_FEED + FETCHED_ANEW)
def test_a_page_shows_the_broker_when_it_is_read(pair: Topology, slow: Slow, name: str) -> None:
    client = signed_in(Role.ADMIN)
    address = pages(pair)[name].replace("name=parked", "name=one")
    being_read(pair.broker)
    before = text_of(client.get(address))
    # Who asks again: the page's feed, or a script of its own.
    assert re.search("data-live-url|delayboard/reading", before)
    slow.let()
    eventually(lambda: snapshots.latest(pair.broker_id), "it is read")
    text = text_of(client.get(address))
    assert not shown(text, "data-live-reading")
    assert shown(text, 'class="age"')
    assert "delayboard/reading" not in text


def test_the_first_page_warns_of_it_and_calls_it_no_trouble(pair: Topology, slow: Slow) -> None:
    being_read(pair.broker)
    text = text_of(signed_in(Role.VIEWER).get(reverse("now")))
    before, said, _ = text.partition(
        "Test broker: The broker answers. The first read is in progress "
    )
    assert said
    assert before.rpartition("<li ")[2].startswith('class="is-warn"')


def test_a_page_of_other_things_does_not_call_it_silent(pair: Topology, slow: Slow) -> None:
    being_read(pair.broker)
    client = signed_in(Role.VIEWER)
    client.get(reverse("now"))
    assert "does not answer" not in text_of(client.get(reverse("replays")))
