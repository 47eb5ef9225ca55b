"""`python -m tests.bench.pages NAME [ROWS]`: fill the settings' database and ask for pages."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import django

ROWS = 1_000_000
TIMES = 40


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from analytics.models import ScheduledMessage
    from tests.bench import crowd
    from tests.bench.figures import say

    name, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROWS
    call_command("migrate", verbosity=0)
    if not ScheduledMessage.objects.exists():
        crowd.fill(number)
    user, _ = User.objects.get_or_create(username="bench", is_superuser=True)
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)
    for what, query in questions().items():
        p50, p95 = times(client, query)
        say(f"{name}, {what}: p95 ms", p95, f"p50 {p50:.0f} ms; under 100 is wanted")


def questions() -> dict[str, Mapping[str, str]]:
    """What is asked for -> its query."""
    from analytics.models import ScheduledMessage
    from tests.bench.crowd import ABSENT, COMMON, RARE

    waiting = ScheduledMessage.objects.order_by("due_at", "id")
    middle = waiting[waiting.count() // 2]
    return {
        "first page": {},
        "a page in the middle": {"after": str(middle.pk)},
        "one of ten topologies": {"topology": "orders-3"},
        "a topology with few": {"topology": "orders-9"},
        "one of 46 destinations": {"destination": "queue-7"},
        "a destination with few": {"destination": "seldom"},
        "due within a range": {"from": "+2d", "until": "+3d"},
        "overdue": {"overdue": "1"},
        "a rare text": {"text": RARE},
        "a text of one in ten thousand": {"text": "customer-4711"},
        "a text of one in a thousand": {"text": r'"\"tenant\":99,"'},
        "a common text": {"text": COMMON},
        "an absent text": {"text": f'"{ABSENT}"'},
        "a text for one destination": {"text": "customer-4711", "destination": "queue-7"},
        "two words": {"text": "or"},
        "a header, one in a million": {"text": f"header.needle:{RARE}"},
        "a header, one in ten thousand": {"text": "header.customer:customer-4711"},
        "a header, one in a thousand": {"text": "header.tenant:99"},
        "an absent header": {"text": "header.absent:nowhere"},
        "a column": {"text": "key:order.* size:>100"},
    }


def times(client: object, query: Mapping[str, str]) -> tuple[float, float]:
    """Milliseconds of a page, p50 and p95; the first two are not counted.

    They read templates and the database's pages, which a site at work has in memory.
    """
    from django.urls import reverse

    address = reverse("analytics:scheduled")
    return times_of(lambda: client.get(address, query))  # type: ignore[attr-defined]


def times_of(ask: Callable[[], Any]) -> tuple[float, float]:
    """The same of any page."""
    taken = []
    for _ in range(2 + TIMES):
        began = time.perf_counter()
        answer = ask()
        taken.append((time.perf_counter() - began) * 1000)
        if answer.status_code != 200:
            raise RuntimeError(f"a page was answered with {answer.status_code}")
    counted = taken[2:]
    return statistics.median(counted), statistics.quantiles(counted, n=20)[-1]


if __name__ == "__main__":
    main()
