"""An operator's whole way through the product, in a real browser on a real broker."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from pytest_django import Settings

from delayboard.alerts import messages
from tests.brokers import Vhost
from tests.browser.album import Album
from tests.browser.at_work import worker_at_work
from tests.browser.guide_tasks import do_the_tasks
from tests.builders import address_of, eventually, make_user
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import Publish
from topology.models import AuditEntry, Role

PARKED = "orders-parked"


@pytest.fixture(autouse=True)
def fast_site(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of its own, and alerts about problems that have not lasted for a minute."""
    settings.EVENT_LOG = tmp_path / "log"
    monkeypatch.setattr(messages, "MINIMUM_DURATION", timedelta(0))


def sign_in(page: Page) -> None:
    make_user("ada", Role.ADMIN)
    page.goto("/")
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill("a long enough password")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page).to_have_url(re.compile(r"/$"))


def add_the_broker(page: Page, vhost: Vhost, album: Album) -> None:
    address = address_of(vhost)
    page.goto("/brokers/add/")
    page.get_by_label("Name", exact=True).fill("Staging rabbit")
    page.get_by_label("Environment").fill("staging")
    page.get_by_label("Colour").select_option("violet")
    page.get_by_label("AMQP address").fill(address.amqp_name)
    page.get_by_label("Virtual host").fill(address.vhost)
    page.get_by_text("More: management API").click()
    page.get_by_label("Management address").fill(address.management_url)
    page.locator("[name=username]").fill(address.username)
    page.locator("[name=password]").fill("a wrong password")
    album.take(page, "broker-form")
    page.get_by_role("button", name="Save and test broker").click()
    expect(page.get_by_role("alert")).to_contain_text("The broker is not saved")
    page.locator("[name=password]").fill(address.password)
    page.get_by_role("button", name="Save and test broker").click()
    expect(page.get_by_role("heading", name="Step 3 of 3: dead-letter queues")).to_be_visible()
    expect(page.get_by_text("AMQP: Connected to the virtual host")).to_be_visible()
    expect(page.get_by_text(re.compile(r"Management API: RabbitMQ \d+\.\d+"))).to_be_visible()
    page.get_by_role("button", name="Finish setup").click()
    expect(page.get_by_text("Staging rabbit is set up.")).to_be_visible()
    album.take(page, "broker")


def provision_a_pair(page: Page, album: Album) -> None:
    page.goto("/topologies/add/?kind=retry_pair")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Delay", exact=True).fill("2s")
    page.locator("main form button.primary").first.click()
    expect(page.get_by_text("New: direct exchange orders-retry")).to_be_visible()
    album.take(page, "topology-planned")
    page.get_by_role("button", name=re.compile("^Apply")).click()
    expect(page.get_by_text(re.compile(r"Applied: \d+ created"))).to_be_visible()
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text("A probe would arrive in orders after 2s.")).to_be_visible()
    album.take(page, "verdict")


def watch_the_picture(page: Page, vhost: Vhost, album: Album) -> None:
    page.goto("/topologies/orders/")
    depth = page.locator('svg [data-key="queue/orders"] .depth')
    expect(depth).to_have_text("0messages")
    with publisher(address_of(vhost), "test") as channel:
        for number in range(3):
            channel.publish(Publish("orders", "orders", build_properties(), b"%d" % number))
    expect(depth).to_have_text("3messages")
    album.take(page, "topology")


def reloaded(page: Page) -> None:
    """The page shows the end of what it followed: it loads itself anew when that has come."""
    expect(page.locator("main[data-live-url]")).to_have_count(0, timeout=300_000)


def publish_and_follow(page: Page, album: Album) -> None:
    page.goto("/topologies/orders/")
    page.get_by_role("link", name="Publish message").click()
    expect(page.get_by_label("Delay")).to_have_value("2s")
    page.get_by_role("textbox", name="Body").fill('{"order": 1, "amount": 12.50}')
    page.get_by_label("Name of header 1").fill("tenant")
    page.get_by_label("Type of header 1").select_option("integer")
    page.get_by_label("Value of header 1").fill("42")
    page.get_by_role("button", name="Predict").click()
    expect(page.locator("#prediction")).to_contain_text("orders")
    expect(page.locator("#prediction")).to_contain_text("2s")
    album.take(page, "prediction")
    page.locator("#prediction button").click()
    # How late is unknown when the recorder is behind, as on a busy machine.
    status = page.locator(".panel .mark").first
    expect(status).to_contain_text("The message arrived at ", timeout=120_000)
    reloaded(page)
    album.take(page, "publication")


def fail_and_park(vhost: Vhost) -> None:
    """What a consumer does: reject two messages once, then give them up; ack the others."""
    address = address_of(vhost)
    with Management(address) as management:
        management.declare_queue(Queue(PARKED))
    given_up = 0
    with publisher(address, "test") as channel, Consumer(address, "orders") as consumer:
        while given_up < 2:
            for delivery in consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0):
                message = delivery.message
                if message.body not in (b"0", b"1"):
                    consumer.ack(through=delivery.tag)
                elif not message.headers.get("x-death"):
                    consumer.reject(delivery)
                else:
                    channel.publish(Publish("", PARKED, message.properties, message.body))
                    consumer.ack(through=delivery.tag)
                    given_up += 1


def read_and_replay(page: Page, vhost: Vhost, album: Album) -> None:
    page.goto("/dead-letters/")
    page.get_by_role("link", name=PARKED).first.click()
    page.get_by_role("button", name="Mark as dead-letter queue").click()
    page.get_by_role("button", name="Peek messages", exact=True).click()
    expect(page.get_by_role("heading", name="All 2 messages")).to_be_visible()
    page.locator("li.message-item summary").first.click()
    history = page.locator("li.message-item").first.locator(".history")
    expect(history).to_contain_text("orders")
    expect(history).to_contain_text("reject")
    album.take(page, "dead-letters")
    page.get_by_role("checkbox", name="Select message 1").check()
    page.get_by_role("button", name="Park and replay messages").click()
    expect(page.get_by_text("The message arrives in orders at once.").first).to_be_visible()
    album.take(page, "replay-dry-run")
    page.get_by_role("button", name="Start replay of 1 message").click()
    expect(page.get_by_role("heading", name="Result")).to_be_visible()
    reloaded(page)
    album.take(page, "replay-done")

    def arrived() -> bool:
        with Management(address_of(vhost)) as management:
            depths = [management.queue(name).get("messages") for name in ("orders", PARKED)]
        return depths == [1, 1]

    eventually(arrived, "one message is back at work and one is still parked")


def read_the_report(page: Page, album: Album) -> None:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    page.goto(f"/reports/?from={today}&to={today}")
    page.get_by_role("button", name="Compute day").click()
    expect(page.locator(".chart .drawn").first).to_be_visible(timeout=300_000)
    reloaded(page)
    chart = page.locator(".chart").first
    height = chart.evaluate("chart => chart.clientHeight")
    album.take(page, "reports")
    assert chart.evaluate("chart => chart.clientHeight") == height


def read_the_audit_log(page: Page, album: Album) -> None:
    page.goto("/audit/")
    for action in ("broker added", "topology applied", "message published", "replay started"):
        expect(page.get_by_text(action).first).to_be_visible()
    album.take(page, "audit")


@pytest.mark.django_db(transaction=True)
def test_an_operator_walks_from_a_new_broker_to_the_report_of_the_day(
    page: Page, vhost: Vhost, album: Album
) -> None:
    with worker_at_work():
        sign_in(page)
        album.take(page, "now-empty")
        add_the_broker(page, vhost, album)
        provision_a_pair(page, album)
        watch_the_picture(page, vhost, album)
        publish_and_follow(page, album)
        fail_and_park(vhost)
        read_and_replay(page, vhost, album)
        do_the_tasks(page, vhost, PARKED, album)
        read_the_report(page, album)
        read_the_audit_log(page, album)
        page.goto("/")
        album.take(page, "now")
    assert album.violations == []
    assert album.errors == []
    assert AuditEntry.objects.filter(outcome__startswith="failed").count() == 0
