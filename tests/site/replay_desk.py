"""What tests of the pages of replays share."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from delayboard.models import ParkedMessage, ReplayBatch
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import signed_in, text_of
from topology.models import Broker, Role

# The options of a draft's form, as it has them by default.
SENT = {
    "order": "oldest",
    "canary": "0",
    "canary_seconds": "0s",
    "undo_seconds": "0s",
    "most_replays": "3",
    "stop_after": "10",
}


def some(broker: Broker, number: int = 2) -> list[ParkedMessage]:
    """Messages that were rejected in `orders`."""
    return parked(broker, *(a_message(b"%d" % one) for one in range(number)))


def page(batch: ReplayBatch, role: Role = Role.OPERATOR, **asked: str) -> str:
    address = reverse("replay_batch", args=[batch.pk])
    return text_of(signed_in(role, batch.broker).get(address, asked))


def press(name: str, batch: ReplayBatch, **values: Any) -> str:
    """Post to an action of the batch; the page that it leads to."""
    client = signed_in(Role.OPERATOR, batch.broker)
    answer = client.post(reverse(f"replay_{name}", args=[batch.pk]), values, follow=True)
    return text_of(answer)
