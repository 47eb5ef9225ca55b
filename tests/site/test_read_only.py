"""The read-only switches in the browser: shown on each page, and refusing with one sentence."""

from __future__ import annotations

from threading import Event

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from delayboard.dead_letters.parked.park_queue import park_automatically
from delayboard.dead_letters.parked.store_batch import SpaceCheck
from delayboard.models import DeadLetterQueue
from tests.builders import make_broker, make_pair, make_user
from topology.models import AuditEntry, Broker, ReadOnly, Role, SiteSwitch

pytestmark = pytest.mark.django_db
SENTENCE = "Test broker is read-only. An administrator can end this."


@pytest.fixture
def broker() -> Broker:
    """Nothing listens at its address: what is refused before asks nobody."""
    broker = make_broker()
    Broker.objects.update(is_read_only=True)
    broker.refresh_from_db()
    return broker


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(make_user("root", Role.ADMIN))
    return client


def test_an_admin_switches_the_site_and_each_page_shows_it(admin: Client) -> None:
    make_broker()
    admin.post("/read-only/", {"switch": "on"})
    reason = "root set Delayboard to read-only at"
    for address in ("/", "/permissions/", "/scheduled/", "/brokers/"):
        page = admin.get(address).content.decode()
        assert f'title="{reason}' in page
        assert ">Read-only</a>" in page
    admin.post("/read-only/", {"switch": "off"})
    assert ">Read-only</a>" not in admin.get("/").content.decode()
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert actions[-2:] == ["read-only enabled", "read-only disabled"]


def test_an_operator_does_not_switch_it() -> None:
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    assert client.post("/read-only/", {"switch": "on"}).status_code == 403
    assert not SiteSwitch.objects.exists()


def test_the_setting_cannot_be_ended_in_the_browser(settings: Settings, admin: Client) -> None:
    make_broker()
    settings.READ_ONLY = True
    page = admin.get("/permissions/").content.decode()
    assert "Delayboard is read-only by the setting READ_ONLY." in page
    assert "End read-only" not in page


def test_a_broker_is_switched_in_its_form_and_named_in_the_header(admin: Client) -> None:
    broker = make_broker(name="Staging")
    make_broker(name="Production")
    address = reverse("topology:broker_edit", args=[broker.slug])
    answer = admin.get(address)
    assert "Delayboard changes no message and no object of this broker." in answer.content.decode()
    form = answer.context["form"]
    fields = {name: form[name].value() or "" for name in form.fields} | {"is_read_only": "on"}
    admin.post(address, fields)
    assert ">Read-only: Staging</a>" in admin.get("/").content.decode()
    assert Broker.objects.get(pk=broker.pk).is_read_only


def test_an_action_is_refused_with_one_sentence_and_reading_goes_on(
    broker: Broker, admin: Client
) -> None:
    make_pair(broker)
    denied = admin.post(reverse("park", args=[broker.slug]), {"name": "orders"})
    assert denied.status_code == 403
    assert SENTENCE in denied.content.decode()
    assert "another role" not in denied.content.decode()
    saved = admin.post(reverse("saved_views"), {"list": "scheduled", "name": "a"})
    assert saved.status_code == 302
    assert admin.get("/permissions/").content.decode().count("Test broker is read-only.") >= 4


def test_a_parker_takes_nothing(broker: Broker) -> None:
    row = DeadLetterQueue.objects.create(
        broker=broker, queue="orders.dead", is_confirmed=True, decided_at=timezone.now()
    )
    with pytest.raises(ReadOnly, match=SENTENCE):
        park_automatically(row.pk, stop=Event(), beat=lambda _: None, space=SpaceCheck())
