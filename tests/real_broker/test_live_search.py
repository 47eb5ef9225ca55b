"""The search of live queues: finds what is there, leaves it there, and hides what rules hide."""

from __future__ import annotations

import pytest
from django.urls import reverse

from delayboard.models import RedactionKind, RedactionRule
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker
from tests.real_broker.test_looks import filled
from tests.site.page_setup import signed_in, text_of
from tests.topology.builders import a_queue
from topology import snapshots
from topology.broker.management.client import Management
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_message_is_found_in_a_live_queue_and_stays_there(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    filled(vhost, a_queue("orders.dlq"))
    filled(vhost, a_queue("billing.dlq", type="quorum"))

    def are_counted() -> bool:
        snapshot = snapshots.poll(broker, 20).snapshot
        assert snapshot is not None
        return [numbers.messages for numbers in snapshot.numbers.values()] == [3, 3]

    eventually(are_counted, "the broker counts the messages")
    client, address = signed_in(Role.OPERATOR), reverse("live_search", args=[broker.slug])
    assert "Search 2 queues" in text_of(client.get(address))
    text = text_of(client.post(address, {"q": "M1 body"}))
    assert "2 matching messages" in text
    assert "6 messages read in 2 queues." in text
    assert text.count('<td data-label="Position" class="number">2</td>') == 2
    assert "1 matching message<" in text_of(client.post(address, {"q": "m1", "queue": "Billing"}))
    assert "2 matching messages" in text_of(client.post(address, {"q": "header.price:1.5 m1"}))
    assert "the field is unknown" in text_of(client.post(address, {"q": "queue:orders"}))
    RedactionRule.objects.create(broker=broker, kind=RedactionKind.HEADER, pattern="price")
    assert "0 matching messages" in text_of(client.post(address, {"q": "header.price:1.5"}))
    assert "0 matching messages" in text_of(client.post(address, {"q": "1.5"}))
    assert signed_in(Role.VIEWER).post(address, {"q": "m1"}).status_code == 403
    queue = reverse("dead_letter_queue", args=[broker.slug]) + "?name=orders.dlq"
    seen = client.post(queue).context["peeked_messages"][1].peeked_message
    copied = {"clone_broker": broker.slug, "clone_queue": "orders.dlq", "clone": seen.handle}
    form = client.post(reverse("publish"), copied).context["form"]
    assert (form["body"].value(), form["routing_key"].value()) == ("body 1", "orders.dlq")
    gone = client.post(reverse("publish"), copied | {"clone": "other"})
    assert "so it was not copied." in text_of(gone)
    with Management(address_of(vhost)) as management:
        depths = [management.queue(f"{name}.dlq").get("messages") for name in ("orders", "billing")]
    assert depths == [3, 3]
    entries = AuditEntry.objects.filter(action="queues searched", outcome="done")
    assert [entry.details["text"] for entry in entries.order_by("pk")] == [
        "M1 body",
        "m1",
        "header.price:1.5 m1",
        "header.price:1.5",
        "1.5",
    ]
