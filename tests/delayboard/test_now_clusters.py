"""What Now says of the nodes, addresses and certificates of clusters."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from cryptography import x509
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from delayboard.now.system import find_ending_certificates, find_outages, find_silent_addresses
from delayboard.worker.check_brokers import watch_addresses
from tests.builders import make_broker, make_user
from tests.faults.odd_node import Authority
from topology.broker import health
from topology.definitions import Definitions
from topology.models import Broker, Role
from topology.snapshot import Snapshot
from topology.snapshots import Latest

pytestmark = pytest.mark.django_db
NOW = timezone.now()
SOUND = Snapshot("4.0.5", NOW, Definitions(), Definitions(), nodes=frozenset({"a", "b", "c"}))


def sentences(broker: Broker, snapshot: Snapshot, error: str = "") -> list[str]:
    known = {broker: Latest(snapshot, NOW, error)}
    found = find_outages(known, [], None)
    return [one.sentence for one in found if one.kind == "broker"]


def test_nodes_that_are_down_and_a_partition_are_named() -> None:
    broker = make_broker()
    assert sentences(broker, SOUND) == []
    (down,) = sentences(broker, replace(SOUND, down=frozenset({"b", "a"})))
    assert down.startswith("Test broker: 2 of 3 nodes are down (a, b). Start the node")
    (partition,) = sentences(broker, replace(SOUND, partitioned=frozenset({"b", "a"})))
    assert "RabbitMQ reports a network partition between a, b" in partition


def test_the_nodes_of_a_broker_that_does_not_answer_are_not_known() -> None:
    old = replace(SOUND, down=frozenset({"a"}))
    assert sentences(make_broker(), old, "No answer.") == ["Test broker: No answer."]


def test_the_worker_stores_which_addresses_of_a_cluster_are_silent() -> None:
    health._failures.clear()
    alone, cluster = make_broker(name="Alone"), make_broker(name="Cluster")
    cluster.amqp_addresses = "127.0.0.1:9, 127.0.0.1:11"
    cluster.save()
    assert watch_addresses(alive=lambda: None) == {"silent addresses": 3}
    assert Broker.objects.get(pk=alone.pk).silent == {}
    stored = Broker.objects.get(pk=cluster.pk)
    assert set(stored.address.doubted) == set(stored.silent)
    found = [one.sentence for one in find_silent_addresses([alone, cluster])]
    since = [one["since"] for one in stored.silent.values()]
    at = f"{timezone.localtime(datetime.fromisoformat(since[0])):%Y-%m-%d %H:%M}"
    assert found == [
        "2 of 2 AMQP addresses of Cluster do not answer "
        f"(127.0.0.1:9: Nothing listens, since {at}; 127.0.0.1:11: Nothing listens, since {at})."
    ]
    watch_addresses(alive=lambda: None)
    stored.refresh_from_db()
    assert [one["since"] for one in stored.silent.values()] == since
    assert list(find_silent_addresses([alone])) == []


def test_certificates_that_expire_within_30_days_are_on_now_and_on_the_page() -> None:
    broker = make_broker()
    ours = Authority("ours", x509.DNSName("ours"))
    broker.client_certificate = ours.certify("soon.test", timedelta(days=29))
    broker.ca_certificate = ours.certify("late.test", timedelta(days=32))
    broker.save()
    (problem,) = find_ending_certificates([broker], timezone.now())
    assert problem.severity == "warning"
    assert "the client certificate CN=soon.test expires on" in problem.sentence
    broker.client_certificate = ours.certify("old.test", -timedelta(days=1))
    broker.save()
    (problem,) = find_ending_certificates([broker], timezone.now())
    assert (problem.severity, "expired on" in problem.sentence) == ("error", True)
    client = Client()
    client.force_login(make_user("ada", Role.VIEWER))
    text = client.get(reverse("topology:broker", args=[broker.slug])).content.decode()
    assert "CN=old.test" in text
    assert "CN=late.test" in text
