from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from analytics.models import Firehose
from tests.brokers import Vhost
from tests.builders import make_broker
from tests.site.page_setup import signed_in, text_of
from tests.site.test_firehose_page import page_of, switch
from topology.broker.management.client import Management
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db


def is_tracing(broker: Broker) -> bool:
    with Management(broker.address) as management:
        return management.is_tracing()


def test_an_admin_switches_it_on_and_off_and_the_page_says_so(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    client = signed_in(Role.ADMIN, broker)
    assert '<span class="state state-off">Disabled</span>' in text_of(client.get(page_of(broker)))
    text = switch(client, broker, switch="on")
    row = Firehose.objects.get(broker=broker)
    assert "The firehose of Test broker is enabled." in text
    assert '<span class="state state-ok">Enabled</span>' in text
    assert f"by {row.switched_on_by}" in text
    assert "Publishers are never blocked" in text
    assert is_tracing(broker)
    assert "The firehose is already enabled." in switch(client, broker, switch="on")
    assert "no longer reads the firehose" in switch(client, broker, switch="off")
    assert not Firehose.objects.exists()
    assert not is_tracing(broker)
    assert "Delayboard did not enable the firehose, so it does not disable the firehose." in switch(
        client, broker, switch="off"
    )


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_others_may_look_and_a_forged_post_of_theirs_changes_nothing(
    vhost: Vhost, role: Role
) -> None:
    broker = make_broker(vhost)
    client = signed_in(role, broker)
    text = text_of(client.get(page_of(broker)))
    assert "Changing the firehose needs the role admin on Test broker." in text
    assert reverse("firehose_switch", args=[broker.slug]) not in text
    answer = client.post(reverse("firehose_switch", args=[broker.slug]), {"switch": "on"})
    assert answer.status_code == 403
    assert not is_tracing(broker)
    assert not AuditEntry.objects.filter(action__startswith="firehose").exists()
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.create_superuser("root"))
    address = reverse("firehose_switch", args=[broker.slug])
    assert strict.post(address, {"switch": "on"}).status_code == 403
    assert not Firehose.objects.exists()


def test_a_post_that_asks_for_neither_changes_nothing(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    client = signed_in(Role.ADMIN, broker)
    switch(client, broker, switch="on")
    assert "must be on or off" in switch(client, broker, switch="<b>off</b>")
    assert Firehose.objects.exists()
    switch(client, broker, switch="off")


def test_a_production_broker_asks_for_its_name(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    Broker.objects.update(is_production=True)
    client = signed_in(Role.ADMIN, broker)
    assert 'data-confirm-name="Test broker"' in text_of(client.get(page_of(broker)))
    assert "is a production broker (test). Type the broker name to confirm." in switch(
        client, broker, switch="on", name="test"
    )
    assert not is_tracing(broker)
    switch(client, broker, switch="on", name="Test broker")
    assert is_tracing(broker)
    switch(client, broker, switch="off")


def test_what_somebody_else_did_is_told_apart(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    client = signed_in(Role.ADMIN, broker)
    with Management(broker.address) as management:
        management.trace(on=True)
        assert "Enabled by another tool" in text_of(client.get(page_of(broker)))
        switch(client, broker, switch="on")
        management.trace(on=False)
        text = text_of(client.get(page_of(broker)))
    assert "Starting" in text
    assert "somebody disabled the firehose" in text
    switch(client, broker, switch="off")
