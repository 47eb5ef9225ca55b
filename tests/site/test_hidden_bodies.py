"""Long bodies where a rule hides parts of bodies: hidden whole, and the pages say so."""

from __future__ import annotations

import gzip
import json

import pytest
from django.urls import reverse

from delayboard.dead_letters.search import listing
from delayboard.models import RedactionRule
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Queue
from topology.models import Broker, Role
from topology.redaction import MASKED_BYTES

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


def body_of(size: int) -> bytes:
    return json.dumps({"name": "Lovelace", "filling": "x" * size}).encode()


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_long_body_is_hidden_whole_and_says_why(broker: Broker, is_packed: bool) -> None:
    know(broker, Queue("dead"))
    body = body_of(MASKED_BYTES)
    (row,) = parked(broker, a_message(gzip.compress(body) if is_packed else body))
    client, address = (
        signed_in(Role.OPERATOR),
        reverse("parked_message", args=["test-broker", row.pk]),
    )
    assert "Lovelace" in text_of(client.get(address))
    RedactionRule.objects.create(kind="body", pattern="card")
    text = text_of(client.get(address))
    assert "The body exceeds 64 kB" in text
    assert "Lovelace" not in text


def test_a_list_shows_only_the_beginnings_of_shorter_ones(broker: Broker) -> None:
    parked(broker, a_message(body_of(listing.MASKED_BYTES)), a_message(body_of(10)))
    RedactionRule.objects.create(kind="body", pattern="card")
    text = text_of(signed_in(Role.OPERATOR).get(reverse("parked_messages", args=["test-broker"])))
    assert text.count("Lovelace") == 1
    assert text.count("redacted") == 1
