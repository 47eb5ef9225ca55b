"""`python -m tests.bench.large_site AMQP MANAGEMENT`: this process as a site at a large broker.

Prints its figures as JSON: seconds of a poll and of looks at what an action changes, CPU seconds
of recognising, of each page and of the version for live pages, and the most memory it took.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import django

from topology.operations.topology_rows import take_over


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from tests.builders import eventually
    from topology import snapshots
    from topology.models import Broker
    from topology.operations.connect import add_broker
    from topology.provisioning.recognition import recognize

    call_command("migrate", verbosity=0)
    user = User.objects.create(username="bench", is_superuser=True)
    broker = add_broker(*_broker(Broker, *sys.argv[1:3]))
    known = eventually(
        lambda: found if (found := snapshots.fresh(broker)).snapshot else None,
        "the broker is seen",
        seconds=180,
    )
    assert known.snapshot is not None
    figures = {"poll seconds": known.snapshot.poll_seconds}
    figures["recognising, CPU seconds"] = _cpu(lambda: recognize(known.snapshot))  # type: ignore[arg-type]
    topology = _topology(broker)
    figures |= _pages(user, broker, topology)
    figures |= _looks(broker)
    figures |= _feed(broker, known)
    figures["most memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps(figures) + "\n")


def _topology(broker: Any) -> Any:
    """A pair of the broker's thousand, as if it were adopted."""
    from topology.patterns.retry_pair import params as retry_pair_params

    return take_over(None, broker, "retry_pair", retry_pair_params.Params("work-7"))


def _looks(broker: Any) -> dict[str, float]:
    """What an action waits for that changes a pair, or the 28 levels, of a broker that is known."""
    from topology import snapshots
    from topology.broker.management.client import Management
    from topology.patterns.delay_levels import params as delay_levels_params
    from topology.patterns.delay_levels.pattern import delay_levels
    from topology.patterns.retry_pair import params as retry_pair_params
    from topology.patterns.retry_pair.pattern import retry_pair

    found = {}
    for name, objects in (
        ("a pair", retry_pair.definitions(retry_pair_params.Params("work-8"))),
        ("28 levels", delay_levels.definitions(delay_levels_params.Params())),
    ):
        with Management(broker.address) as management:
            began = time.perf_counter()
            seen = snapshots.for_action(broker, management, objects)
        found[f"look before a change of {name}, seconds"] = time.perf_counter() - began
        assert {obj.identity for obj in objects} <= {t.identity for t in seen.declared}
    return found


def _feed(broker: Any, known: Any) -> dict[str, float]:
    from delayboard.live.subjects import make_broker_version

    return {"live version, CPU seconds": _cpu(lambda: make_broker_version(broker, known))}


def _pages(user: Any, broker: Any, topology: Any) -> dict[str, float]:
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
            ("what is found in it", "discovered", ""),
            ("where a publish goes", "trace-route", "?exchange=work-7&routing_key=work-7"),
        )
    }
    others = {
        "now": reverse("now"),
        "brokers": reverse("topology:brokers"),
        "topologies": reverse("topology:topologies"),
        "a topology": reverse("topology:topology", args=[topology.slug]),
        "publish": reverse("publish"),
        "what waits": reverse("analytics:scheduled"),
    }
    parked_messages = f"{reverse('dead_letters')}?broker={broker.slug}"
    a_queue = f"{reverse('dead_letter_queue', args=[broker.slug])}?name=counted"
    pages = own | others | {"dead letters": parked_messages, "a queue of them": a_queue}
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
        amqp_addresses=address.amqp_name,
        vhost=address.vhost,
        username=address.username,
        management_urls=address.management_url,
    )
    return made, address.password


def _cpu(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


if __name__ == "__main__":
    main()
