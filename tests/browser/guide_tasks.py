"""Tasks of docs/guide that the walk does after its first replay, as their pages describe them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from playwright.sync_api import Page, expect

from analytics.models import ScheduledMessage
from delayboard.models import (
    BatchState,
    MessageGroup,
    ParkedMessage,
    ReplayBatch,
    ScheduledChange,
)
from tests.brokers import Vhost
from tests.browser import contents
from tests.browser.album import Album
from tests.builders import address_of, eventually
from tests.receivers import Hook, webhook
from topology.broker.management.client import Management
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.models import Broker, Topology
from topology.operations.provision import apply
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels

LEVELS = 10
MISTAKE = "newsletter"


def do_the_tasks(page: Page, vhost: Vhost, parked_from: str, album: Album) -> None:
    """The rest of the guide: schedule, group, paused replay, alerts, finding, migration."""
    broker = Broker.objects.get()
    first, second = (_levels(broker, prefix) for prefix in ("later", "afterwards"))
    contents.delayed(vhost, first, ["10m"], "orders")
    search_live_queues(page, broker, album)
    describe_the_group(page, broker, parked_from)
    with webhook(200) as hook:
        pause_and_continue(page, partial(get_alerts, hook=hook, album=album))
    copy_a_dead_letter(page, broker, album)
    publish_many(page, album)
    reschedule_and_undo(page)
    check_the_migration(page, first, second)
    correct_a_finding(page, vhost, broker)


def describe_the_group(page: Page, broker: Broker, queue: str) -> None:
    page.goto(f"/dead-letters/{broker.slug}/queue/?name={queue}")
    page.get_by_role("button", name="Park all messages").click()
    expect(page.get_by_text("All messages are stored in Delayboard")).to_be_visible()
    group = MessageGroup.objects.get(parked=1)
    page.goto("/dead-letters/")
    page.locator(f'a[href^="/dead-letters/{broker.slug}/groups/{group.pk}/"]').first.click()
    page.get_by_role("textbox", name="Note").fill("The price service was down.")
    page.get_by_label("Owner").select_option("ada")
    page.get_by_role("button", name="Save notes").click()
    expect(page.locator("dd.note")).to_have_text("The price service was down.")


def search_live_queues(page: Page, broker: Broker, album: Album) -> None:
    page.goto(f"/dead-letters/?broker={broker.slug}")
    page.get_by_role("link", name="Search live queues").click()
    page.get_by_label("Text").fill("orders")
    page.get_by_role("button", name=re.compile(r"^Search \d+ queue")).click()
    expect(page.get_by_role("heading", name="1 matching message")).to_be_visible()
    album.take(page, "live-search")


def copy_a_dead_letter(page: Page, broker: Broker, album: Album) -> None:
    message = ParkedMessage.objects.latest("pk")
    page.goto(f"/dead-letters/{broker.slug}/parked/{message.pk}/")
    page.get_by_role("link", name="Copy to new message").click()
    expect(page.get_by_label("Exchange", exact=True)).to_have_value("orders")
    page.get_by_role("textbox", name="Body").fill('{"order": 2}')
    album.take(page, "publish-copy")
    page.get_by_text("Save as template").click()
    page.get_by_label("Template name").fill("Order of one article")
    page.get_by_role("button", name="Save template").click()
    expect(page.get_by_role("link", name="Order of one article")).to_be_visible()
    expect(page.get_by_role("textbox", name="Body")).to_have_value('{"order": 2}')
    album.take(page, "publish-template")


def publish_many(page: Page, album: Album) -> None:
    """With the form as the template filled it."""
    page.locator("summary", has_text="Many messages").click()
    page.get_by_label("Number of messages").fill("200")
    page.get_by_label("Messages per second").fill("100")
    page.get_by_role("button", name="Publish many messages").click()
    expect(page.get_by_role("heading", name="Result")).to_be_visible(timeout=60_000)
    expect(page.locator("label", has_text="published 200, not published 0,")).to_be_visible()
    album.take(page, "publish-job")


def get_alerts(page: Page, hook: Hook, album: Album) -> None:
    """While a replay is paused, which is a problem of Now."""
    page.goto("/system/")
    page.get_by_role("link", name="Alerts").click()
    page.get_by_role("radio", name="Webhook").check()
    page.get_by_label("Address", exact=True).fill(hook.address)
    page.get_by_role("button", name="Add receiver").click()
    page.get_by_role("button", name="Send test alert to").click()

    def is_complete() -> bool:
        titles = {post["title"] for post in hook.posts}
        is_paused = any("is paused" in post["message"] for post in hook.posts)
        return is_paused and "Delayboard: test alert" in titles

    # On a busy machine the receiver may answer too late, and the alert comes again after a minute.
    eventually(is_complete, "the alerts arrive", seconds=150)

    def is_sent() -> bool:
        page.goto("/alerts/")
        return page.get_by_text("Sent", exact=True).count() == len(hook.posts)

    eventually(is_sent, "the log has the answers")
    album.take(page, "alerts")
    page.get_by_role("button", name="Delete receiver").click()
    expect(page.get_by_role("heading", name="No receivers")).to_be_visible()


def pause_and_continue(page: Page, do_while_paused: Callable[[Page], None]) -> None:
    """From the page of the group: nothing is published within the undo time."""
    page.get_by_role("button", name="Replay group").click()
    page.locator("details", has=page.get_by_label("Undo time")).locator("summary").click()
    page.get_by_label("Undo time").fill("10m")
    page.get_by_role("button", name="Update dry run").click()
    page.get_by_role("button", name=re.compile("^Start replay")).click()
    page.get_by_role("button", name="Pause replay").click()
    resume = page.get_by_role("button", name="Resume replay")
    expect(resume).to_be_visible()
    replay = page.url
    do_while_paused(page)
    page.goto(replay)
    resume.click()
    expect(page.get_by_role("heading", name="Undo time")).to_be_visible()
    page.get_by_role("button", name="Cancel replay").first.click()
    eventually(
        lambda: ReplayBatch.objects.latest("pk").state == BatchState.CANCELLED,
        "the replay is cancelled",
    )


def reschedule_and_undo(page: Page) -> None:
    waiting = ScheduledMessage.objects.filter(topology__name__startswith="later")
    eventually(waiting.exists, "the list has the message that waits")
    message = waiting.get()
    page.goto("/scheduled/")
    page.locator(f'a[href^="/scheduled/{message.pk}/"]').first.click()
    page.get_by_role("button", name="Reschedule message").click()
    page.get_by_label("New due time").fill("+12m")
    page.get_by_role("button", name="Check messages").click()
    page.get_by_role("button", name="Reschedule 1 message").click()
    eventually(ScheduledChange.objects.exists, "the change is requested")
    page.goto("/scheduled/changes/")
    page.get_by_role("button", name="Undo change").click()
    expect(page.get_by_role("button", name="Undo change")).to_have_count(0)


def check_the_migration(page: Page, source: Topology, target: Topology) -> None:
    page.goto(f"/topologies/{source.slug}/migrate/")
    page.get_by_label("Target").select_option(target.slug)
    page.get_by_role("button", name="Check messages").click()
    expect(page.get_by_role("heading", name="Known messages")).to_be_visible()
    expect(page.get_by_role("button", name="Request migration")).to_be_visible()


def correct_a_finding(page: Page, vhost: Vhost, broker: Broker) -> None:
    """A queue whose dead-letter exchange is missing, until somebody declares it."""
    with Management(address_of(vhost)) as management:
        arguments = Arguments({"x-dead-letter-exchange": MISTAKE})
        management.declare_queue(Queue(MISTAKE, arguments=arguments))
        finding = page.get_by_role("link", name="Dead-letter exchange missing")

        def is_listed() -> bool:
            page.goto(f"/findings/{broker.slug}/")
            return finding.count() == 1

        eventually(is_listed, "the finding is listed")
        finding.click()
        expect(page.get_by_role("heading", name="Remedy")).to_be_visible()
        expect(page.locator("pre").first).to_contain_text(MISTAKE)
        management.declare_exchange(Exchange(MISTAKE))
        management.declare_queue(Queue(f"{MISTAKE}-dead"))
        management.bind(Binding(MISTAKE, f"{MISTAKE}-dead", MISTAKE))
        eventually(lambda: not is_listed(), "the finding is resolved")


def _levels(broker: Broker, prefix: str) -> Topology:
    params = delay_levels_params.Params("own", prefix, LEVELS)
    topology = create_topology(None, broker, delay_levels.KIND, params)
    apply(None, topology)
    return topology
