"""The page Reports with 90 days of 200 topologies, compared with the 90 days before."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.bench.figures import say

DAYS, TOPOLOGIES, TIMES = 90, 200, 7


def measure(folder: Path) -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    fill()
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(User.objects.create_superuser("reports"))
    taken = []
    for _ in range(TIMES):
        began = time.thread_time()
        answer = client.get("/reports/?range=90")
        taken.append(time.thread_time() - began)
        assert b"compared with the 90 days before" in answer.content
    size = len(answer.content) / 1000
    note = f"seconds of a processor; under 0.3 is wanted; {size:.0f} kB of at most 400"
    say(f"reports of {DAYS} days with {TOPOLOGIES} topologies", min(taken), note)


def fill() -> None:
    """Figures of the days up to yesterday, of twice the range."""
    from analytics.models import DayFigures
    from tests.analytics import result_rows
    from topology.models import Broker

    Broker.objects.create(
        slug="main", name="Main", amqp_addresses="127.0.0.1", management_urls="http://x"
    )
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    groups = [{"broker": "main", "topology": f"topology-{n:03}"} for n in range(TOPOLOGIES)]
    result_rows.days([yesterday], groups)
    rows = list(DayFigures.objects.filter(day=yesterday))
    for number in range(1, 2 * DAYS):
        for row in rows:
            row.pk, row.day = None, yesterday - timedelta(days=number)
        DayFigures.objects.bulk_create(rows, batch_size=500)
