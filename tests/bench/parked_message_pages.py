"""`python -m tests.bench.parked_message_pages NAME [ROWS]`: fill the database, ask for pages."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import django

ROWS = 1_000_000


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client
    from django.urls import reverse

    from delayboard.models import ParkedMessage
    from tests.bench import journal
    from tests.bench.figures import say
    from tests.bench.pages import times_of
    from tests.builders import make_broker
    from topology.models import Broker

    name, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROWS
    call_command("migrate", verbosity=0)
    broker = Broker.objects.first() or make_broker(name="Bench")
    if not ParkedMessage.objects.exists():
        journal.fill(broker, number)
    user, _ = User.objects.get_or_create(username="bench", is_superuser=True)
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)
    address = reverse("parked_messages", args=[broker.slug])
    for what, query in questions(number).items():
        p50, p95 = times_of(lambda query=query: client.get(address, query))  # type: ignore[misc]
        say(
            f"{name}, parked messages, {what}: p95 ms",
            p95,
            f"p50 {p50:.0f} ms; under 200 is wanted",
        )


def questions(number: int) -> dict[str, Mapping[str, str]]:
    """What is asked for -> its query."""
    from delayboard.models import MessageGroup

    by_size = list(MessageGroup.objects.order_by("parked").values_list("pk", flat=True))
    asked = {
        "one queue of 41": "queue:queue-7.dead",
        "two thirds of all, one queue": "queue:orders.dead",
        "queues by a star": "queue:queue-1*",
        "the largest group": f"group:{by_size[-1]}",
        "a group with few": f"group:{by_size[0]}",
        "groups of one reason": "reason:expired",
        "one message id": f"id:message-{number // 3:08d}",
        "a header, one in four": "header.region:region-2",
        "a header, one in a hundred": "header.tenant:42",
        "a header, one in five thousand": "header.note:uncommon",
        "a header by its beginning": "header.note:unc*",
        "an absent header": "header.absent:1",
        "a number above, half of all": "body.amount:>500000",
        "a number above, one in a hundred": "body.amount:>990000",
        "a number above, few": "body.amount:>999900",
        "a number above, none": "body.amount:>1000000",
        "deaths above, few": "deaths:>15",
        "parked long ago": f"parked:>=2020-01-01 id:message-{number // 2:08d}",
        "an age": "died-at:<2d",
        "a common text": "waiting",
        "a text of one in ten thousand": "customer-4711",
        "a text of one in five thousand": "uncommon",
        "a text of common words": "order-message",
        "an absent text": "nowhere-to-be-found",
        "two words": "or",
        "two headers": "header.tenant:42 header.region:region-1",
        "a header and a number": "header.tenant:42 body.amount:>900000",
        "a queue and a header": "queue:queue-7.dead header.tenant:42",
        "a reason and a text": "reason:rejected customer-4711",
        "a text but not a header": "customer-4711 -header.region:region-1",
    }
    deep = {"after": str(number // 2)}
    return {
        "first page": {},
        "a page in the middle": deep,
        "a header in the middle": {"q": "header.tenant:42", **deep},
        **{what: {"q": query} for what, query in asked.items()},
    }


if __name__ == "__main__":
    main()
