"""The trace of a message is on its pages, with a link, unless a rule hides it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from analytics.events import bounded_headers, decode, encode
from analytics.models import ScheduledMessage
from analytics.scheduled import projection
from delayboard.models import RedactionKind, RedactionRule
from tests.analytics.builders import an_entry
from tests.delayboard.builders import SHOP, a_death, a_message, deaths_header, parked
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.clients.test_trace import PARENT, SPAN, TRACE
from topology.models import Broker, Role, Topology

pytestmark = pytest.mark.django_db
HEADERS = {"traceparent": PARENT, "tracestate": "vendor=<b>"}


@pytest.fixture
def addresses(broker: Broker, pair: Topology) -> list[str]:
    """Of a waiting message, a parked one, and the same one in a draft."""
    know(broker, *SHOP)
    due_at = timezone.now() + timedelta(hours=1)
    event = an_entry("m1", due_at, headers_json=bounded_headers(HEADERS))
    projection.project(pair, [decode(encode(event))])
    rows = parked(broker, a_message(b"{}", deaths_header(a_death()) | HEADERS))
    return [
        reverse("analytics:scheduled_message", args=[ScheduledMessage.objects.get().pk]),
        reverse("parked_message", args=[broker.slug, rows[0].pk]),
        reverse("replay_item", args=[a_batch(broker, rows).pk, 1]),
    ]


def test_the_trace_is_linked_to_the_address_of_the_setting(
    addresses: list[str], settings: Settings
) -> None:
    client = signed_in(Role.OPERATOR)
    settings.TRACE_URL = 'https://traces.example.com/{trace_id}?from="now"&x'
    link = f'<a class="name" href="https://traces.example.com/{TRACE}?from=&quot;now&quot;&amp;x"'
    for address in addresses:
        text = text_of(client.get(address))
        assert link in text
        assert f'span <span class="name">{SPAN}</span>' in text
        assert "vendor=&lt;b&gt;" in text
        assert "vendor=<b>" not in text
    settings.TRACE_URL = ""
    for address in addresses:
        text = text_of(client.get(address))
        assert f'<dt>Trace</dt><dd><span class="name">{TRACE}</span>' in text
        assert "traces.example.com" not in text


def test_a_rule_hides_the_trace(addresses: list[str]) -> None:
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="trace*", least_role=Role.ADMIN)
    client = signed_in(Role.OPERATOR)
    for address in addresses:
        assert TRACE not in text_of(client.get(address))
