"""What scripts do in forms and beside commands: fields that follow another, text that is copied."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from tests.browser.sign_in import sign_in
from tests.builders import make_broker, make_pair
from tests.site.page_setup import know
from topology.definitions import Arguments, Queue
from topology.findings.find import find
from topology.models import State, Topology

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_fields_of_publish_follow_the_topology_and_the_kind_of_body(
    page: Page, ada: User, site_url: str
) -> None:
    broker = make_broker()
    first, second = make_pair(broker, delay="15s"), make_pair(broker, name="invoices", delay="15s")
    Topology.objects.update(state=State.APPLIED)
    know(broker, *first.definitions, *second.definitions)
    sign_in(page.context, ada, site_url)
    page.goto("/publish/?topology=orders&target=orders&delay=15s")
    expect(page.locator("#prediction")).to_contain_text("arrives in orders")
    page.get_by_label("Topology", exact=True).select_option("invoices")
    expect(page.locator("#prediction")).to_contain_text("arrives in invoices")
    expect(page.locator("#delay-offer")).to_contain_text("Available delays: ")
    kind = page.get_by_label("Content type")
    expect(kind).to_have_value("text/plain")
    page.get_by_role("radio", name="JSON").check()
    expect(kind).to_have_value("application/json")
    # A typed content type stays.
    kind.fill("application/xml")
    page.get_by_role("radio", name="Base64").check()
    expect(kind).to_have_value("application/xml")


def test_all_commands_of_a_finding_are_copied_by_one_button(
    page: Page, ada: User, site_url: str
) -> None:
    broker = make_broker()
    lost = Queue("lost", arguments=Arguments({"x-dead-letter-exchange": "not-there"}))
    one = find(know(broker, lost))[0]
    sign_in(page.context, ada, site_url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"/findings/{broker.slug}/{one.key}/")
    commands = page.locator("pre[data-copy]")
    page.get_by_text("Commands", exact=True).click()
    page.get_by_role("button", name="Copy all 3 commands").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == commands.text_content()
