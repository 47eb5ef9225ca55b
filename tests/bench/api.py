"""Each GET of the API over a hundred thousand waiting and as many parked messages: server time."""

from __future__ import annotations

from pathlib import Path

ROWS = 100_000
WANTED_MS = 50


def measure(folder: Path) -> None:
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from analytics.models import ScheduledMessage
    from delayboard.api import door
    from delayboard.api.site import make_document
    from delayboard.models import MessageGroup, ParkedMessage, Publication
    from tests.bench import crowd, journal
    from tests.bench.figures import say
    from tests.bench.pages import times_of
    from tests.site.api_client import api_of
    from tests.site.page_setup import draft, know
    from topology.models import Broker, Role, Topology

    settings.ALLOWED_HOSTS = ["*"]
    call_command("migrate", verbosity=0)
    crowd.fill(ROWS)
    broker = Broker.objects.get()
    journal.fill(broker, ROWS)
    know(broker)
    Publication.objects.bulk_create(Publication(broker=broker, size=1) for _ in range(1000))
    replay = [draft(broker) for _ in range(100)][-1].pk
    door.REQUESTS_PER_MINUTE = 10**9
    api = api_of(User.objects.create_superuser("bench", password="of a benchmark"), Role.ADMIN)
    names = {
        "broker": broker.slug,
        "topology": Topology.objects.latest("pk").slug,
        "group": MessageGroup.objects.latest("parked").pk,
        "replay": replay,
        "publication": Publication.objects.latest("pk").pk,
        "day": "2026-11-20",
    }
    taken, unmeasured = [], []
    for path, methods in sorted(make_document()["paths"].items()):
        if "get" not in methods or "export" in path:
            continue
        message = ScheduledMessage if path.startswith("/api/v1/scheduled") else ParkedMessage
        address = path.removeprefix("/api/v1/")
        try:
            address = address.format(**names, message=message.objects.latest("pk").pk)
        except KeyError:
            unmeasured.append(address)
            continue
        answer = api.get(address)
        if answer.status_code != 200:
            unmeasured.append(f"{address}: {answer.status_code}")
            continue
        p50, p95 = times_of(lambda address=address: api.get(address))  # type: ignore[misc]
        taken.append(p95)
        say(f"GET {path.removeprefix('/api/v1')}: p95 ms", p95, f"p50 {p50:.0f} ms")
    fast = sum(one < WANTED_MS for one in taken)
    say("GETs with a p95 under 50 ms, in percent", 100 * fast / len(taken), "95 is wanted")
    print("Not measured:", *unmeasured, sep="\n  ")
