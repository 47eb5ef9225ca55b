"""`python -m tests.bench.large_site AMQP MANAGEMENT`: this process as a site at a large broker.

Prints its figures as JSON: seconds of a poll, CPU seconds of recognising and of each page, and
the most memory that it took.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import django


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from tests.builders import eventually
    from topology import latest
    from topology.connect import add_broker
    from topology.models import Broker
    from topology.provisioning.recognition import recognise

    call_command("migrate", verbosity=0)
    user = User.objects.create(username="bench", is_superuser=True)
    broker = add_broker(*_broker(Broker, *sys.argv[1:3]))
    known = eventually(
        lambda: found if (found := latest.fresh(broker)).snapshot else None,
        "the broker is seen",
        seconds=60,
    )
    assert known.snapshot is not None
    figures = {"poll seconds": known.snapshot.poll_seconds}
    figures["recognising, CPU seconds"] = _cpu(lambda: recognise(known.snapshot))  # type: ignore[arg-type]
    figures |= _pages(user, broker)
    figures["most memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps(figures) + "\n")


def _pages(user: Any, broker: Any) -> dict[str, float]:
    """CPU seconds of each page, recognising included where a page does it."""
    from django.test import Client
    from django.urls import reverse

    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)
    own = {
        name: reverse(f"topology:{view}", args=[broker.slug]) + query
        for name, view, query in (
            ("its queues", "broker", ""),
            ("its picture", "vhost", ""),
            ("its other queues", "vhost", "?open=queues"),
            ("a search in it", "vhost", "?q=work-99"),
            ("what is found in it", "found", ""),
            ("where a publish goes", "where", "?exchange=work-7&routing_key=work-7"),
        )
    }
    pages = own | {"dead letters": f"{reverse('dead_letters')}?broker={broker.slug}"}
    figures = {}
    for name, address in pages.items():

        def look(address: str = address) -> None:
            answer = client.get(address)
            assert answer.status_code == 200, (address, answer.status_code)

        # The first looks for templates; a poll in another thread would be counted too.
        figures[f"page of {name}, CPU seconds"] = min(_cpu(look), _cpu(look))
    return figures


def _broker(row: Any, amqp_url: str, management_url: str) -> tuple[Any, str]:
    from topology.broker.address import parse_address

    address = parse_address(amqp_url, management_url)
    made = row(
        name="Large",
        host=address.host,
        port=address.port,
        vhost=address.vhost,
        username=address.username,
        management_url=address.management_url,
    )
    return made, address.password


def _cpu(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


if __name__ == "__main__":
    main()
