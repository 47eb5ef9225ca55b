"""The states that the site is looked at in, and every page of it in each.

A sight is one picture: a page's address, and what is done on it first where the picture is
of what a form answers. `PAGES` of the URL conf without a sight fail tests/browser/test_sights.py.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial

from django.contrib.auth.models import User
from django.urls import NoReverseMatch, reverse
from playwright.sync_api import Page

from analytics.models import ScheduledMessage, Slo
from analytics.recorder.firehose_switch import switch_on
from delayboard.models import (
    BatchState,
    DelayMigration,
    ItemState,
    MessageGroup,
    Publication,
    ReplayBatch,
)
from delayboard.models.publication import Sent
from delayboard.sign_in.tokens import make_token
from tests.brokers import Vhost
from tests.browser import contents, died, replays, rows
from tests.browser.names import crowd, long_name
from tests.browser.sights import Scene, Sight, press
from tests.builders import address_of, applied_topology, eventually, make_broker, make_pair
from topology import snapshots, work
from topology.broker.management.client import Management
from topology.definitions import Arguments, Binding, Queue
from topology.findings.find import find
from topology.models import Broker, Role, State, Topology, Work, WorkState
from topology.operations.probes import start_probes
from topology.operations.provision import apply
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues import params as delay_queues_params
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.table import PATTERNS, list_created

YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)
PARKED = "orders-parked"
# Many fill two pages of each list and more; very many reach every limit.
MANY = 120
VERY_MANY = 300
LIFETIME = timedelta(hours=1)
# What these answer with is a file.
DOWNLOADS = frozenset(
    {
        "parked_messages_export",
        "parked_message_body",
        "api",
        "api_document",
        "client_convention_export",
        "analytics:report_table",
        "analytics:stored_report",
        "topology:topology_export",
    }
)


# Steps of a sign-in, each after another one: tests/browser/test_sign_in_walk.py.
STEPS = ("account_", "mfa_", "openid_connect_", "provider_", "sign_in_link")


def some_address(view: str) -> str:
    """An address of this view, of a thing that need not exist."""
    for arguments in ([], ["x"], ["1"], ["00000000-0000-0000-0000-000000000000"], ["x", "1"]):
        try:
            return reverse(view, args=arguments)
        except NoReverseMatch:
            continue
    raise AssertionError(f"{view} takes other arguments than a slug, a number, both or a UUID")


def fresh(user: User) -> Scene:
    """Just installed: an account and nothing else."""
    scene = Scene(user)
    scene.add_lists()
    scene.add("login", "login", is_public=True)
    scene.add("password", "password")
    scene.add("preferences", "preferences")
    scene.add("alerts", "alerts")
    scene.add("webhooks", "webhooks")
    scene.add("permissions", "permissions")
    scene.add("sessions", "sessions")
    make_token(user, name="deploy of orders", role=Role.VIEWER, brokers=None, days=90)
    scene.add("tokens", "api_tokens")
    scene.add("api", "api_reference")
    scene.add("group-roles", "group_roles")
    scene.add("second-factor", "mfa_index")
    scene.add("runs", "analytics:runs")
    scene.add("broker-add", "topology:broker_add")
    for kind in PATTERNS:
        scene.add(f"explain-{kind}", "topology:explain", kind)
    missing = reverse("topology:topology", args=["not-there"])
    scene.sights.append(Sight("not-found", "topology:topology", missing, status=404))
    refused = reverse("topology:topology_add")
    scene.sights.append(Sight("refused", "topology:topology_add", refused, status=403))
    return scene


def empty(user: User, vhost: Vhost) -> Scene:
    """A broker that holds nothing and for which nothing was made."""
    broker = make_broker(vhost, name="Empty rabbit")
    scene = Scene(user)
    scene.add_lists()
    scene.add("broker", "topology:broker", broker.slug)
    scene.add("broker-start", "broker_start", broker.slug)
    scene.add("found", "topology:discovered", broker.slug)
    scene.add("findings", "topology:findings", broker.slug)
    scene.add("finding-history", "topology:finding_history", broker.slug)
    scene.add("diagram", "topology:vhost", broker.slug)
    scene.add("firehose", "firehose", broker.slug)
    for kind in list_created():
        scene.add(f"plan-{kind}", "topology:topology_add", query={"kind": kind})
    return scene


def normal(user: User, vhost: Vhost) -> Scene:
    """A pair that works, a few messages that wait, a few that died."""
    broker = make_broker(vhost, name="Orders staging")
    _dress(broker, environment="staging", colour="violet")
    pair = _applied(broker, "orders")
    planned = make_pair(broker, name="invoices", delay="2m")
    names = ["orders", "invoices", "parked_messages", "refunds", "returns"]
    contents.declare(vhost, [PARKED, *names[1:]])
    contents.dead_letters(vhost, PARKED, names, deaths=3)
    levels, holds = _other_patterns(vhost, broker)
    start_probes(user, levels)
    rows.probes(levels)
    rows.background_tasks(pair, levels, holds)
    rows.missing_bindings(levels, "returns")
    switch_on(user, broker)
    rows.firehose(broker)
    rows.audit_entries(user, broker, names)
    parked_message = rows.scheduled(pair, names)
    delayed = rows.scheduled(levels, ["refund-5"])
    rows.changes(delayed, user)
    rows.minutes(pair, read_at=datetime.now(UTC) + LIFETIME)
    rows.minutes(levels, read_at=datetime.now(UTC) - LIFETIME / 4)
    eventually(lambda: _numbers_known(broker), "the broker counts its messages")
    rows.run(YESTERDAY, "done")
    rows.report(YESTERDAY, broker, [pair.slug, planned.slug])
    Slo.objects.create(topology=pair, percent=99)
    rows.stored_report(YESTERDAY)
    sent = rows.publications(broker, user, names)
    batch = rows.batch(broker, user, [PARKED, *names], BatchState.DONE)
    scene = Scene(user)
    scene.add_lists()
    scene.add("report-messages", "analytics:report_messages", query={"kind": "retried"})
    scene.add("report-retries", "analytics:reports", query={"view": "retries", "range": "28"})
    rows.alerts()
    scene.add("alerts", "alerts")
    scene.add("webhooks", "webhooks")
    scene.add("look", "look")
    scene.add("imports", "analytics:imports")
    scene.add("import", "analytics:import", rows.log_import(user, broker).pk)
    scene.add("nightly-run", "analytics:nightly_run", YESTERDAY.isoformat())
    _add_rows(scene, broker, pair, sent, batch)
    scene.add("publish-job", "publish_job", rows.publish_job(broker, user).pk)
    replays.add(scene, broker, [PARKED, *names])
    _add_scheduled(scene, parked_message)
    _add_acts(scene, broker, pair, planned)
    change = {"message": str(delayed.pk), "kind": "reschedule"}
    scene.add("scheduled-change", "scheduled_change", query=change)
    scene.add("scheduled-change-of-a-pair", "scheduled_change", query=_cancel(parked_message))
    scene.add("levels", "topology:topology", levels.slug)
    scene.add("levels-all", "topology:topology", levels.slug, query={"levels": "all"})
    for tab in ("destinations", "definition", "code", "settings"):
        scene.add(f"topology-{tab}", f"topology:topology_{tab}", levels.slug)
    for tab in ("messages", "history"):
        scene.add(f"topology-{tab}", f"analytics:topology_{tab}", pair.slug)
    scene.add("scheduled-stuck", "analytics:scheduled", query={"stuck": "1"})
    scene.add("hold-queues", "topology:topology", holds.slug)
    into = {"target": levels.slug}
    scene.add("migrate-delays", "migrate_delays", holds.slug, query=into)
    request = press("Request migration")
    scene.add("migrate-delays-confirm", "migrate_delays", holds.slug, query=into, act=request)
    migrated = _migrated(broker, user, levels)
    scene.add("migration-paused", "migrate_delays", migrated.slug, query=into)
    queued = {"message": str(_queued(vhost, broker).pk), "kind": "cancel"}
    scene.add("scheduled-change-of-a-queue", "scheduled_change", query=queued)
    scene.add("queue-replacement", "topology:topology", _drifted(vhost, broker).slug)
    edited = {"name": "orders", "delay": "9m", "routing_key": "urgent"}
    scene.add("topology-edit", "topology:topology_edit", pair.slug, query=edited)
    built = {"kind": "delay_levels", "name": contents.half_built(vhost)}
    scene.add("found-one", "topology:discovered", broker.slug, query=built)
    scene.add("findings-one", "topology:finding", broker.slug, _first_finding(broker))
    scene.add("prediction-levels", "publish", query=_far(levels), act=press("Predict"))
    return scene


def several(user: User, vhost: Vhost) -> Scene:
    """Three brokers, of which none is chosen: two that work, and one that never answered."""
    for number, (name, colour) in enumerate((("orders", "violet"), ("refunds", "amber"))):
        broker = make_broker(vhost, name=f"{name.title()} rabbit")
        _dress(broker, environment="staging" if number else "test", colour=colour)
        pair = _applied(broker, name)
        contents.declare(vhost, [f"{name}-parked", f"{name}-dead"])
        died.groups(broker, user, f"{name}-parked", ["shop.NoStock", "shop.Timeout"])
        rows.scheduled(pair, [f"{name}-1", f"{name}-2"])
        eventually(partial(_numbers_known, broker), "the broker counts its messages")
    _dress(_unreachable("Stock rabbit"), environment="production", is_production=True)
    rows.hosts()
    scene = Scene(user)
    scene.add("system", "system")
    scene.add("dead-letters", "dead_letters")
    scene.add("retrying", "retrying_anywhere")
    scene.add("scheduled", "analytics:scheduled")
    return scene


def _drifted(vhost: Vhost, broker: Broker) -> Topology:
    """A pair whose retry queue somebody declared anew with another TTL."""
    pair = _applied(broker, "shipments")
    arguments: dict[str, str | int] = {
        "x-message-ttl": 60_000,
        "x-dead-letter-exchange": "shipments",
    }
    with Management(address_of(vhost)) as management:
        management.delete_queue("shipments-retry", only_if_empty=False)
        management.declare_queue(Queue("shipments-retry", arguments=Arguments(arguments)))
        management.bind(Binding("shipments-retry", "shipments-retry", "shipments"))
    return pair


def crowded(user: User, vhost: Vhost, number: int = MANY) -> Scene:
    """So many of everything, and names as long and as hostile as AMQP allows."""
    names = crowd(number)
    broker = make_broker(vhost, name="The broker of " + long_name("everything", 86))
    _dress(broker, environment="production of all the things", colour="red", is_production=True)
    contents.declare(vhost, names)
    pair = _applied(broker, long_name("orders", 240))
    _many_topologies(broker, names)
    contents.dead_letters(vhost, names[0], names[:60], deaths=40)
    rows.background_tasks(*Topology.objects.filter(broker=broker)[:40])
    rows.audit_entries(user, broker, names)
    parked_message = rows.scheduled(pair, names)
    rows.minutes(pair, read_at=datetime.now(UTC) + LIFETIME)
    rows.gap(pair, "the tap queue was full, so that its oldest copies were dropped")
    for back in range(20):
        rows.run(YESTERDAY - timedelta(days=back), "done")
    rows.report(YESTERDAY, broker, names[-30:])
    sent = rows.publications(broker, user, names)
    states = list(ItemState)
    for _ in range(60):
        rows.batch(broker, user, names[:2], BatchState.DONE, states)
    batch = rows.batch(broker, user, names, BatchState.DONE, states)
    for number in range(40):
        _dress(_unreachable(f"Rabbit {number}"), environment=f"test {number}", colour="amber")
    scene = Scene(user)
    scene.add_lists(dead_letters={"broker": broker.slug})
    scene.add("runs", "analytics:runs")
    _add_rows(scene, broker, pair, sent, batch, queue=names[0])
    _add_scheduled(scene, parked_message)
    replays.add(scene, broker, names)
    return scene


def broken(user: User, vhost: Vhost) -> Scene:
    """One broker went away, one was never there; the worker is dead; what ran has failed."""
    gone = make_broker(vhost, name="Orders production")
    _dress(gone, environment="production", colour="red", is_production=True)
    pair = _applied(gone, "orders")
    contents.declare(vhost, [PARKED])
    eventually(lambda: _numbers_known(gone), "the broker counts its messages")
    _dress(gone, amqp_addresses="127.0.0.1:9", management_urls="http://127.0.0.1:9")
    snapshots.poll(gone)
    never = _unreachable("Never reached")
    other = make_pair(never, name="invoices", delay="2m")
    _dress(pair, state=State.APPLYING)
    rows.background_tasks(
        pair, other, at=datetime.now(UTC) - timedelta(hours=3), error=rows.REFUSAL
    )
    rows.firehose(gone, error=rows.REFUSAL)
    rows.run(YESTERDAY, "failed", rows.FAILURE)
    rows.gap(pair, "the tap queue was gone")
    rows.audit_entries(user, gone, [PARKED] * 10)
    lost = rows.publications(gone, user, ["orders"], sent=Sent.REFUSED)
    doubt = rows.publications(gone, user, ["orders"], sent=Sent.UNKNOWN)
    failed = rows.batch(gone, user, [PARKED] * 9, BatchState.FAILED, error=rows.REFUSAL)
    states = list(ItemState)
    torn = rows.batch(gone, user, [PARKED] * 9, BatchState.RUNNING, states, rows.REFUSAL)
    scene = Scene(user)
    scene.add_lists(dead_letters={"broker": gone.slug})
    _add_rows(scene, gone, pair, lost, failed)
    scene.add("publication-in-doubt", "publication", doubt.pk)
    scene.add("replay-torn", "replay_batch", torn.pk)
    scene.add("broker-never-reached", "topology:broker", never.slug)
    scene.add("picture-never-reached", "topology:vhost", never.slug)
    scene.add("topology-never-reached", "topology:topology", other.slug)
    scene.add("dead-letters-never-reached", "dead_letters", query={"broker": never.slug})
    scene.add("verify-refused", "topology:topology", pair.slug, act=press("Verify"))
    rows.alerts()
    scene.add("alerts", "alerts")
    scene.add("webhooks", "webhooks")
    scene.add("nightly-run", "analytics:nightly_run", YESTERDAY.isoformat())
    scene.add("form-refused", "topology:broker_edit", gone.slug, act=_send_nothing)
    return scene


def _add_rows(
    scene: Scene,
    broker: Broker,
    topology: Topology,
    sent: Publication,
    batch: ReplayBatch,
    *,
    queue: str = PARKED,
) -> None:
    scene.add("publication", "publication", sent.pk)
    name = {"name": queue}
    scene.add("queue", "dead_letter_queue", broker.slug, query=name)
    scene.add("queue-look", "dead_letter_queue", broker.slug, query=name, act=_look)
    scene.add("queue-move", "move_queue", broker.slug, query=name)
    scene.add("live-search", "live_search", broker.slug, act=_search_live)
    causes = ["shop.NoStock", "System.TimeoutException"] if queue == PARKED else crowd(60)
    group = died.groups(broker, scene.user, queue, causes)
    scene.add("parked-message-group", "message_group", broker.slug, group.pk)
    some = MessageGroup.objects.filter(broker=broker).exclude(pk=group.pk).order_by("pk")[:2]
    chosen = {"group": [one.pk for one in some]}
    scene.add("merge-groups", "merge_message_groups", broker.slug, query=chosen)
    scene.add(
        "parked-message-group-days", "message_group", broker.slug, group.pk, query={"by": "day"}
    )
    scene.add("retrying", "retrying", broker.slug)
    _add_parked_messages(scene, broker, queue, causes)
    scene.add("replay", "replay_batch", batch.pk)
    scene.add("broker", "topology:broker", broker.slug)
    scene.add("broker-start", "broker_start", broker.slug)
    scene.add("found", "topology:discovered", broker.slug)
    scene.add("findings", "topology:findings", broker.slug)
    scene.add("finding-history", "topology:finding_history", broker.slug)
    scene.add("broker-edit", "topology:broker_edit", broker.slug)
    scene.add("firehose", "firehose", broker.slug)
    published = {"exchange": "", "routing_key": queue, "expiration": "90000"}
    scene.add("where", "topology:trace_route", broker.slug, query=published)
    scene.add("diagram", "topology:vhost", broker.slug)
    scene.add("picture-opened", "topology:vhost", broker.slug, query={"open": "queues"})
    scene.add("topology", "topology:topology", topology.slug)


def _add_parked_messages(scene: Scene, broker: Broker, queue: str, names: list[str]) -> None:
    """Parked messages: the list as it is searched, single messages, and what is done with many."""
    parked_message = died.storied(broker, queue, names)
    died.rules(broker, scene.user, names[:10])
    scene.add("parked_messages", "parked_messages", broker.slug)
    scene.add(
        "parked_messages-found",
        "parked_messages",
        broker.slug,
        query={"q": f"id:{parked_message.message_id[:9]}*"},
    )
    scene.add(
        "parked_messages-refused", "parked_messages", broker.slug, query={"q": "colour:red reason:"}
    )
    scene.add("parked_messages-none", "parked_messages", broker.slug, query={"q": "deaths:>900"})
    scene.add("parked_message", "parked_message", broker.slug, parked_message.pk)
    scene.add(
        "parked-message-replayed",
        "parked_message",
        broker.slug,
        parked_message.pk,
        query={"replay": "1"},
    )
    scene.add("parked-message-binary", "parked_message", broker.slug, died.binary(broker, queue).pk)
    unknown = died.unknown_library(broker, scene.user, queue, names)
    scene.add("parked-message-group-unknown", "message_group", broker.slug, unknown.pk)
    of_group = {"group": str(unknown.pk)}
    conventions = ("client_conventions", broker.slug)
    scene.add("client-conventions", *conventions, query=of_group, act=_try_convention)
    preview = {"kind": "body", "pattern": "$.order.lines[*].price"}
    scene.add("redaction", "redaction", broker.slug, query=preview)
    # Not one that runs: its page fetches itself anew all the time.
    for state in (WorkState.DONE, WorkState.FAILED):
        error = rows.REFUSAL if state == WorkState.FAILED else ""
        ended = died.parking(broker, queue, state, error)
        scene.add(f"parking-{state}", "parking", broker.slug, ended.pk)
    changed = died.change(broker, WorkState.DONE)
    scene.add("parked_messages-change", "parked_messages_change", broker.slug, changed.pk)


def _try_convention(page: Page) -> None:
    typed = {"Name": "shop", "Header that all its messages have": "x-src-queue"}
    facts = {"Queue": "x-src-queue", "Exception type": "x-why | trace_type", "Id": "x-order"}
    for label, text in (typed | facts).items():
        page.get_by_label(label, exact=True).fill(text)
    press("Try convention")(page)


def _add_scheduled(scene: Scene, parked_message: ScheduledMessage) -> None:
    """A message that waits, with and without its body, and the list as it is filtered."""
    page = "analytics:scheduled"
    scene.add("scheduled-message", f"{page}_message", parked_message.pk)
    scene.add("scheduled-body", f"{page}_message", parked_message.pk, query={"body": "1"})
    scene.add("scheduled-tomorrow", page, query={"from": "+1d"})
    scene.add("scheduled-searched", page, query={"text": "tenant", "from": "-1d", "until": "+2h"})
    scene.add("scheduled-overdue", page, query={"overdue": "1"})
    scene.add("scheduled-none", page, query={"text": "nowhere to be found"})
    scene.add("scheduled-refused", page, query={"from": "tomorrow", "until": "+2h"})


def _add_acts(scene: Scene, broker: Broker, pair: Topology, planned: Topology) -> None:
    """What forms answer, and an open menu."""
    through = {"topology": pair.slug, "delay": "15s"}
    scene.add("topology-planned", "topology:topology", planned.slug)
    scene.add("verdict", "topology:topology", pair.slug, act=press("Verify"))
    scene.add("teardown", "topology:topology_settings", pair.slug, act=_open_teardown)
    scene.add("prediction", "publish", query=through, act=press("Predict"))
    scene.add("broker-tested", "topology:broker", broker.slug, act=press("Test connection"))
    scene.add("nothing-found", "topology:audit", query={"q": "never happened"})
    scene.add(
        "account-menu", "now", act=lambda page: page.locator(".menu-account > summary").click()
    )


def _other_patterns(vhost: Vhost, broker: Broker) -> tuple[Topology, Topology]:
    """Delay levels in which one destination is gone, and hold queues in use."""
    levels = create_topology(None, broker, delay_levels.KIND, delay_levels_params.Params())
    apply(None, levels)
    contents.delayed(vhost, levels, ["45s", "2m", "1h", "3d", "400d"], "parked_messages")
    contents.held_up(vhost, levels, "returns")
    contents.declare_exchange(vhost, "mail", "refunds", "out")
    holds = create_topology(
        None, broker, hold_queues.KIND, hold_queues_params.Params("mail", ("out",))
    )
    apply(None, holds)
    contents.delayed(vhost, holds, ["5m", "1h"], "out")
    return levels, holds


def _migrated(broker: Broker, user: User, target: Topology) -> Topology:
    """Levels whose migration somebody paused after an error."""
    params = delay_levels_params.Params("own", "former", 4)
    source = applied_topology(create_topology(None, broker, delay_levels.KIND, params))
    own = work.create("migrate", source.pk, broker=broker, user=user)
    Work.objects.filter(pk=own.pk).update(error=rows.REFUSAL, pause_requested=True)
    DelayMigration.objects.create(
        source=source,
        target=target,
        work=own,
        requested_by=user,
        moved=12_345,
        malformed=2,
        doubled=17,
    )
    return source


def _queued(vhost: Vhost, broker: Broker) -> ScheduledMessage:
    """A message in a delay queue, which is read to change it."""
    contents.declare(vhost, ["mails"])
    params = delay_queues_params.Params("mails", (timedelta(hours=1),))
    topology = applied_topology(create_topology(None, broker, delay_queues.KIND, params))
    message = rows.scheduled(topology, ["mails"])
    message.destination = "mails"
    message.routing_key = delay_queues_params.queue_name("mails", timedelta(hours=1))
    message.exchange, message.left_at = "", None
    message.due_at = datetime.now(UTC) + timedelta(hours=1)
    message.save()
    return message


def _cancel(message: ScheduledMessage) -> dict[str, str]:
    return {"message": str(message.pk), "kind": "cancel"}


def _far(levels: Topology) -> dict[str, str]:
    return {"topology": levels.slug, "delay": "1h1m1s", "target": "parked_messages"}


def _open(page: Page) -> None:
    parked_messages = page.locator("li.message-item summary")
    if parked_messages.count():
        parked_messages.first.click()


def _look(page: Page) -> None:
    look = page.locator("main button:enabled", has_text="Peek messages")
    if look.count():
        look.click()
        _open(page)


def _search_live(page: Page) -> None:
    search = page.locator("main button:enabled", has_text=re.compile("^Search [0-9]"))
    if search.count():
        page.get_by_label("Text").fill("e")
        search.click()


def _open_teardown(page: Page) -> None:
    page.locator("#deletion summary").click()


def _send_nothing(page: Page) -> None:
    page.locator("main form").evaluate("form => { form.noValidate = true }")
    for box in page.locator("main input[type=text]").all():
        box.fill("")
    press("Save and test broker")(page)


def _applied(broker: Broker, name: str) -> Topology:
    return applied_topology(make_pair(broker, name=name, delay="15s"))


def _unreachable(name: str) -> Broker:
    return make_broker(name=name)


def _dress(row: Broker | Topology, **values: object) -> None:
    for name, value in values.items():
        setattr(row, name, value)
    row.save()


def _numbers_known(broker: Broker) -> bool:
    snapshot = snapshots.poll(broker, 20).snapshot
    assert snapshot is not None
    return all(numbers.messages is not None for numbers in snapshot.numbers.values())


def _first_finding(broker: Broker) -> str:
    snapshot = snapshots.poll(broker, 20).snapshot
    assert snapshot is not None
    return find(snapshot)[0].key


def _many_topologies(broker: Broker, names: list[str]) -> None:
    Topology.objects.bulk_create(
        Topology(
            broker=broker,
            slug=f"crowd-{n}",
            kind="retry_pair",
            name=name[:240],
            params={"name": name[:240], "delay": "1h30m", "routing_key": name[:240]},
            state=list(State)[n % 3],
        )
        for n, name in enumerate(names)
    )
