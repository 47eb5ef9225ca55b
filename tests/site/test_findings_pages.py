from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from delayboard.now.navigation import count_badges
from tests.builders import make_broker
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from tests.topology.findings.examples import EXAMPLES
from topology import snapshots
from topology.broker.management.definitions_file import read_export
from topology.definitions import Exchange, Queue
from topology.findings.find import LIVE_RULES, RULES, find
from topology.findings.finding import Rule
from topology.findings.hit import Severity
from topology.findings.remedy import make_remedy
from topology.findings.rules.cycles import describe_parking
from topology.findings.rules.settings import INCOMPLETE
from topology.models import Broker, FindingMute, Role, State, Topology
from topology.operations.finding_rows import mute_finding, record_findings
from topology.snapshot import QueueNumbers
from topology.snapshots import Latest
from topology.views.background import SnapshotResults

pytestmark = pytest.mark.django_db

WEEK = timedelta(days=7)
LOST = a_queue("lost", dlx="not-there")
LOOP = [a_queue("work", dlx="", key="wait"), a_queue("wait", ttl=5, dlx="", key="work")]


def listed(broker: Broker, **query: str) -> str:
    address = reverse("topology:findings", args=[broker.slug])
    return text_of(signed_in(Role.VIEWER, broker).get(address, query))


def opened(broker: Broker, *objects: Any) -> str:
    """The page of the worst finding."""
    key = find(know(broker, *objects))[0].key
    address = reverse("topology:finding", args=[broker.slug, key])
    return text_of(signed_in(Role.VIEWER, broker).get(address))


def test_a_viewer_sees_the_findings_of_a_broker_the_worst_first(broker: Broker) -> None:
    know(broker, *LOOP, LOST)
    text = listed(broker)
    assert text.index("Dead-letter exchange missing: not-there") < text.index("Retries without an")
    assert '<span class="state state-error">Loss</span>' in text
    for sort, is_first in (("severity", False), ("finding", True), ("-finding", False)):
        text = listed(broker, sort=sort)
        assert (
            text.index("exchange missing: not-there") < text.index("Retries without")
        ) == is_first


def test_findings_are_chosen_by_severity_and_by_the_name_of_an_object(broker: Broker) -> None:
    know(broker, *LOOP, LOST)
    assert "Dead-letter exchange missing" not in listed(broker, severity="style")
    assert "Retries without an end" not in listed(broker, q="LOST")
    assert "No matching findings" in listed(broker, q="nothing has this name")


def test_a_vhost_without_findings_says_what_was_checked(broker: Broker) -> None:
    know(broker, a_queue("work"))
    assert "No findings. The check covers 1 queues and 0 exchanges." in listed(broker)


def test_a_finding_shows_the_setting_the_remedy_and_the_path(broker: Broker) -> None:
    text = opened(broker, LOST)
    assert "RabbitMQ drops each message that dies in “lost”." in text
    # Each command is complete: no variable, no word to replace, and one button for all.
    assert f"rabbitmqadmin --vhost {broker.vhost} declare exchange name=not-there" in text
    assert "declare queue name=not-there" in text
    assert "destination=not-there" in text
    assert text.count("<pre") == 1
    assert 'data-copy="Copy all 3 commands"' in text
    url = urlsplit(broker.management_url)
    options = f"--host={url.hostname} --port={url.port} --username={broker.username}"
    assert f"the options {options} of the management API" in text
    assert "Replace " not in text
    assert "The exchange “not-there” does not exist." in text
    assert "<svg" in text


LOSSES = [one for one in (*RULES, *LIVE_RULES) if one.severity == Severity.LOSS]


@pytest.mark.parametrize("rule", LOSSES, ids=lambda rule: rule.id)
def test_a_finding_of_lost_messages_has_a_button(broker: Broker, rule: Rule) -> None:
    example = EXAMPLES[rule.id].failing
    (snapshot,) = read_export(example.definitions()).values()
    earlier_at = snapshot.taken_at - timedelta(minutes=1)
    unused = {q.name: QueueNumbers(messages=0, consumers=0) for q in snapshot.declared.queues}
    live = {
        "numbers": {**unused, **example.numbers},
        "earlier": example.earlier,
        "reports": example.reports,
    }
    snapshot = replace(snapshot, earlier_at=earlier_at, **cast("Any", live))
    snapshots._latest[broker.pk] = Latest(snapshot, timezone.now() + timedelta(days=1))
    (found,) = [one for one in find(snapshot, [rule]) if one.rule is rule]
    address = reverse("topology:finding", args=[broker.slug, found.key])
    text = text_of(signed_in(Role.OPERATOR, broker).get(address))
    head, _, rest = text.partition("<h2>Explanation</h2>")
    assert 'form="apply"' in head
    assert "Mute…" in head
    assert 'id="apply"' in rest


def test_what_is_declared_again_needs_stopped_publishers_and_an_empty_queue(
    broker: Broker,
) -> None:
    (snapshot,) = read_export(EXAMPLES["F05"].failing.definitions()).values()
    (found,) = [one for one in find(snapshot) if one.rule.id == "F05"]
    snapshots._latest[broker.pk] = Latest(snapshot, timezone.now() + timedelta(days=1))
    client = signed_in(Role.OPERATOR, broker)
    text = text_of(client.get(reverse("topology:finding", args=[broker.slug, found.key])))
    assert "The number of messages of “f05-wait” is not known. Try again." in text
    assert 'form="apply"' not in text
    unused = {"f05-wait": QueueNumbers(messages=0, consumers=0)}
    snapshot = replace(snapshot, numbers=unused)
    snapshots._latest[broker.pk] = Latest(snapshot, timezone.now() + timedelta(days=1))
    text = text_of(client.get(reverse("topology:finding", args=[broker.slug, found.key])))
    assert "Replace: classic queue f05-wait, TTL 1m, x-expires 60000 → not set" in text
    address = reverse("topology:finding_apply", args=[broker.slug, found.key])
    refused = text_of(client.post(address, follow=True))
    assert "Nothing was changed. Confirm that the publishers are stopped." in refused
    assert re.search(r'name="replaced" value="[0-9a-f]{64}"', text)
    stale = {"stopped": "on", "replaced": "of another plan"}
    refused = text_of(client.post(address, stale, follow=True))
    assert "Nothing was changed. The plan changed. Open the finding again." in refused
    numbers = {"f05-wait": QueueNumbers(messages=2)}
    held = Latest(replace(snapshot, numbers=numbers), timezone.now() + timedelta(days=1))
    snapshots._latest[broker.pk] = held
    text = text_of(client.get(reverse("topology:finding", args=[broker.slug, found.key])))
    assert "“f05-wait” holds 2 messages. Empty it first." in text
    assert 'form="apply"' not in text


def test_what_a_topology_defines_is_replaced_on_its_page_only(pair: Topology) -> None:
    """The finding is about another queue, and its remedy would declare the target again."""
    transient = [
        replace(one, durable=False) if isinstance(one, Queue) else one for one in pair.definitions
    ]
    seen = know(pair.broker, *transient, a_queue("other", ttl=5, dlx="", key="orders-retry"))
    (found,) = [one for one in find(seen) if one.rule.id == "F08"]
    remedy = make_remedy(found, seen)
    assert remedy is not None
    assert ([one[1] for one in found.objects], remedy.replaced[0].name) == (
        ["other"],
        "orders-retry",
    )
    client = signed_in(Role.OPERATOR, pair.broker)
    address = reverse("topology:finding", args=[pair.broker.slug, found.key])
    text = text_of(client.get(address))
    assert 'form="apply"' not in text
    assert "A topology defines what this changes." in text
    assert f"View topology {pair.name}" in text


def test_the_plan_of_a_remedy_has_the_queue_that_somebody_chooses(broker: Broker) -> None:
    seen = know(broker, a_queue("wait", ttl=5, dlx="return"), Exchange("return", "fanout"))
    (found,) = [one for one in find(seen) if one.rule.id == "F02"]
    client = signed_in(Role.OPERATOR, broker)
    address = reverse("topology:finding", args=[broker.slug, found.key])
    text = text_of(client.get(address))
    assert "Create queue<" in text
    assert "binding from return to queue return-dead-letters" in text
    text = text_of(client.get(address, {"queue": "wait"}))
    assert "Create binding<" in text
    assert "New: binding from return to queue wait" in text
    assert "Applying the remedy needs the role operator" in text_of(
        signed_in(Role.VIEWER, broker).get(address)
    )


def test_many_commands_are_one_block_with_one_button(broker: Broker) -> None:
    levels = [
        a_queue(
            f"work-{n}",
            type="quorum",
            dlx="",
            key="dead",
            x_overflow="reject-publish",
            x_dead_letter_strategy="at-least-once",
        )
        for n in range(4)
    ]
    know(broker, *levels, a_queue("dead"))
    (found,) = [one for one in find(know(broker, *levels, a_queue("dead"))) if one.rule.id == "F24"]
    address = reverse("topology:finding", args=[broker.slug, found.key])
    text = text_of(signed_in(Role.VIEWER, broker).get(address))
    assert text.count("<pre") == 1
    assert 'data-copy="Copy all 4 commands"' in text


def test_retries_without_an_end_have_a_remedy_in_steps(pair: Topology) -> None:
    text = opened(pair.broker, *pair.definitions)
    assert "Retries without an end" in text
    assert "declare queue name=orders-parking" in text
    assert f"{reverse('topology:patterns')}?broker={pair.broker.slug}#comparison" in text
    snapshot = know(pair.broker, *pair.definitions)
    _, _, lines = describe_parking("orders", snapshot)
    assert escape(lines) in text

    def consume(rejections: int) -> list[str]:
        """The lines as a consumer runs them, for a message with so many rejections."""
        channel = Mock()
        death = {"queue": "orders", "reason": "rejected", "count": rejections}
        properties = SimpleNamespace(headers={"x-death": [death]})
        names = {"channel": channel, "properties": properties, "method": Mock(), "body": b"1"}
        exec(lines, names)
        return [name for name, *_ in channel.mock_calls]

    assert consume(2) == ["basic_reject"]
    assert consume(3) == ["basic_publish", "basic_ack"]


def test_retries_without_an_end_are_parked_in_the_dead_letter_queue_that_exists(
    pair: Topology,
) -> None:
    # Delayboard is a consumer of a queue that it parks automatically.
    snapshot = know(pair.broker, *pair.definitions, a_queue("orders-given-up"))
    parker = replace(snapshot.numbers["orders-given-up"], consumers=1)
    numbers = {**snapshot.numbers, "orders-given-up": parker}
    assert describe_parking("orders", replace(snapshot, numbers=numbers))[0] == "orders-given-up"
    text = opened(pair.broker, *pair.definitions, a_queue("orders-given-up"))
    assert "This dead-letter queue exists" in text
    assert "orders-parking" not in text
    assert "&quot;orders-given-up&quot;, body" in text
    text = opened(pair.broker, *pair.definitions, a_queue("orders-dead", type="stream"))
    assert "declare queue name=orders-parking" in text


def test_a_finding_in_a_managed_topology_leads_to_its_plan(pair: Topology) -> None:
    left = (obj for obj in pair.definitions if obj.identity != ("queue", "orders"))
    text = opened(pair.broker, *left)
    assert "No queue gets a message that dies in “orders-retry”" in text
    assert (
        f'href="{reverse("topology:topology", args=[pair.slug])}">View topology orders</a>' in text
    )
    # Its plan has the right arguments: there is no second one beside it.
    assert "Create queue<" not in text


def test_a_finding_in_discovered_levels_leads_to_their_differences(broker: Broker) -> None:
    objects = read_export(EXAMPLES[INCOMPLETE.id].failing.definitions())[""].definitions
    know(broker, *objects)
    found = next(one for one in find(know(broker, *objects)) if one.rule is INCOMPLETE)
    address = reverse("topology:finding", args=[broker.slug, found.key])
    text = text_of(signed_in(Role.VIEWER, broker).get(address))
    assert "?kind=delay_levels&amp;name=f22.delay-level" in text


def test_a_finding_that_is_gone_leads_back_to_the_list(broker: Broker) -> None:
    know(broker, a_queue("work"))
    address = reverse("topology:finding", args=[broker.slug, "f01-0123456789ab"])
    assert "Finding not found" in text_of(signed_in(Role.VIEWER, broker).get(address))


def test_hostile_names_are_text(broker: Broker) -> None:
    text = opened(broker, a_queue("<b>'; rm -rf $HOME #", dlx="<script>alert(1)</script>"))
    assert "<script>alert(1)" not in text
    assert "<b>&#x27;; rm" not in text
    assert "name=&#x27;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;" in text


def test_five_hundred_queues_with_one_mistake_are_one_row(broker: Broker) -> None:
    know(broker, *(a_queue(f"work-{n}", dlx="not-there") for n in range(500)))
    text = listed(broker)
    assert text.count("Dead-letter exchange missing") == 1
    assert "and 499 more" in text


def test_the_page_of_a_broker_counts_its_findings(broker: Broker) -> None:
    know(broker, LOST)
    page = reverse("topology:broker", args=[broker.slug])
    assert "1 loss</span>" in text_of(signed_in(Role.VIEWER, broker).get(page))


def test_the_page_of_a_broker_has_a_first_look_with_the_worst_findings(broker: Broker) -> None:
    dead = [a_queue("failing", dlx="", key="dead"), a_queue("dead")]
    know(broker, LOST, *LOOP, *dead, dead=7)
    page = reverse("topology:broker", args=[broker.slug])
    text = text_of(signed_in(Role.VIEWER, broker).get(page))
    assert "<strong>1</strong><span>recognized topologies" in text
    assert "<strong>7</strong><span>dead letters without a consumer" in text
    assert "RabbitMQ drops each message that dies in “lost”." in text
    assert text.index("Dead-letter exchange missing") < text.index("Retries without an end")


def test_of_several_brokers_each_has_its_counts(broker: Broker) -> None:
    other = make_broker(name="Other rabbit")
    record_findings(broker, find(know(broker, LOST)), timezone.now())
    know(other, LOST)
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:findings_overview")))
    assert text.count("1 loss</span>") == 1
    assert count_badges([broker, other], timezone.now())["topology:findings_overview"].number == 1
    # The worker has not checked the other one yet.
    assert text.count('<span class="quiet">unknown</span>') == 1
    assert "not yet" in text


def test_of_one_broker_the_findings_are_shown_at_once(broker: Broker) -> None:
    know(broker, LOST)
    text = text_of(signed_in(Role.VIEWER, broker).get(reverse("topology:findings_overview")))
    assert "Dead-letter exchange missing: not-there" in text


def test_of_very_many_objects_the_page_says_that_it_checks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topology.views.background.AT_ONCE", 0)
    monkeypatch.setattr("topology.views.findings._results", SnapshotResults())
    monkeypatch.setattr("topology.views.background.PATIENCE_SECONDS", 0)
    know(broker, LOST)
    text = listed(broker)
    assert "Check in progress" in text or "Dead-letter exchange missing" in text


def muted(broker: Broker, **given: str) -> Any:
    """The answer to muting the worst finding until tomorrow."""
    key = find(know(broker, LOST, *LOOP))[0].key
    tomorrow = timezone.now().date() + timedelta(days=1)
    data = {"reason": "ticket <7>", "until": tomorrow.isoformat()} | given
    client = signed_in(Role.OPERATOR, broker)
    address = reverse("topology:finding_mute", args=[broker.slug, key])
    return client.post(address, data, follow=True)


def test_a_muted_finding_is_listed_apart_with_its_reason_until_its_end(broker: Broker) -> None:
    text = text_of(muted(broker))
    assert "Finding muted until" in text
    assert "ticket &lt;7&gt;" in text
    text = listed(broker)
    assert text.index("Retries without an end") < text.index("<h2>Muted</h2>")
    assert text.index("<h2>Muted</h2>") < text.index("Dead-letter exchange missing")
    assert "<strong>1</strong><span>Loss" not in text
    FindingMute.objects.update(until_at=timezone.now())
    assert "<h2>Muted</h2>" not in listed(broker)
    assert "Dead-letter exchange missing" in listed(broker)


def test_an_operator_unmutes_it(broker: Broker) -> None:
    muted(broker)
    key = FindingMute.objects.get().key
    address = reverse("topology:finding_unmute", args=[broker.slug, key])
    assert "Finding unmuted." in text_of(
        signed_in(Role.OPERATOR, broker).post(address, follow=True)
    )
    assert "<h2>Muted</h2>" not in listed(broker)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"reason": " "}, "This field is required."),
        ({"until": "2026-01-01"}, "This day is in the past."),
        ({"until": "9999-01-01"}, "A mute lasts a year at most."),
        ({"until": "soon"}, "Enter a valid date."),
    ],
)
def test_a_mute_needs_a_reason_and_a_day_to_come(
    broker: Broker, given: dict[str, str], sentence: str
) -> None:
    text = text_of(muted(broker, **given))
    assert sentence in text
    assert '<details class="menu" open>' in text
    assert not FindingMute.objects.exists()


def test_what_the_broker_does_not_have_is_not_muted(broker: Broker) -> None:
    know(broker, a_queue("work"))
    address = reverse("topology:finding_mute", args=[broker.slug, "f01-0123456789ab"])
    answer = signed_in(Role.OPERATOR, broker).post(address, follow=True)
    assert "Finding not muted." in text_of(answer)


def test_while_findings_are_computed_nothing_is_said_to_be_resolved(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(pair.broker, LOST)
    monkeypatch.setattr("topology.views.findings.get_findings", lambda *_: None)
    address = reverse("topology:finding_mute", args=[pair.broker.slug, "f01-0123456789ab"])
    client = signed_in(Role.OPERATOR, pair.broker)
    assert "the findings are not computed yet" in text_of(client.post(address, follow=True))
    page = client.get(reverse("topology:topology", args=[pair.slug]))
    assert "Delayboard is still computing the findings" in text_of(page)


def test_the_history_has_when_findings_appeared_and_went(broker: Broker) -> None:
    address = reverse("topology:finding_history", args=[broker.slug])
    client = signed_in(Role.VIEWER, broker)
    assert "The worker has not checked" in text_of(client.get(address))
    at = timezone.now()
    record_findings(broker, find(know(broker, LOST, *LOOP)), at - timedelta(hours=1))
    record_findings(broker, find(know(broker, *LOOP)), at)
    text = text_of(client.get(address))
    assert "Dead-letter exchange missing: not-there" in text
    assert text.count('<span class="state state-note">Open</span>') == 1
    assert f"/findings/{broker.slug}/f27-" in text
    assert f"/findings/{broker.slug}/f01-" not in text


def test_the_page_of_a_topology_lists_its_findings(pair: Topology) -> None:
    left = (obj for obj in pair.definitions if obj.identity != ("queue", "orders"))
    know(pair.broker, *left, LOST)
    page = reverse("topology:topology", args=[pair.slug])
    text = text_of(signed_in(Role.VIEWER, pair.broker).get(page))
    assert "Dead letters without a route" in text
    assert "Dead-letter exchange missing" not in text


def test_the_list_of_topologies_counts_the_findings_of_each(pair: Topology) -> None:
    address = reverse("topology:topologies")
    left = [obj for obj in pair.definitions if obj.identity != ("queue", "orders")]
    Topology.objects.update(state=State.APPLIED)
    client = signed_in(Role.VIEWER, pair.broker)
    seen = know(pair.broker, *left, LOST)
    assert len(find(seen)) > 1
    assert "1 loss" in text_of(client.get(address))
    for one in find(seen):
        mute_finding(None, pair.broker, one, reason="known", until_at=timezone.now() + WEEK)
    assert "1 loss" not in text_of(client.get(address))
    snapshots.forget(pair.broker.pk)
    assert "unknown" in text_of(client.get(address))


def test_now_counts_the_findings_that_the_worker_saw_and_warns_of_losses(broker: Broker) -> None:
    page = reverse("now")
    snapshot = know(broker, LOST, *LOOP)
    unchecked = signed_in(Role.VIEWER, broker).get(page).content.decode()
    assert "not checked yet" in unchecked
    record_findings(broker, find(snapshot), timezone.now())
    text = text_of(signed_in(Role.VIEWER, broker).get(page))
    assert "Test broker: messages are lost. " in text
    assert "Findings <strong>2</strong>" in text
    muted(broker)
    text = text_of(signed_in(Role.VIEWER, broker).get(page))
    assert "messages are lost" not in text
    assert "Findings <strong>1</strong>" in text


def test_a_finding_that_needs_earlier_numbers_is_announced_until_they_are_there(
    broker: Broker,
) -> None:
    seen = know(broker, a_queue("work", dlx="", key="dead"), a_queue("dead"))
    numbers = {"dead": QueueNumbers(messages=9, consumers=0)}
    seen = replace(seen, numbers=numbers)
    fewer = {"dead": QueueNumbers(messages=1, consumers=0)}
    earlier_at = seen.taken_at - timedelta(minutes=1)
    with_trend = replace(seen, earlier=fewer, earlier_at=earlier_at)
    found = find(with_trend, LIVE_RULES)
    assert [one.rule.id for one in found] == ["L09", "L11"]
    record_findings(broker, found, timezone.now())
    page = reverse("topology:finding", args=[broker.slug, found[0].key])
    client, known = signed_in(Role.VIEWER, broker), snapshots._latest[broker.pk]
    for snapshot, is_pending in ((seen, True), (with_trend, False)):
        snapshots._latest[broker.pk] = replace(known, snapshot=snapshot)
        assert ("1 more finding: " in listed(broker)) == is_pending
        assert ("reloads automatically" in text_of(client.get(page))) == is_pending
        assert "Finding not found" not in text_of(client.get(page))
    mute_finding(None, broker, found[0], reason="known", until_at=timezone.now() + WEEK)
    snapshots._latest[broker.pk] = replace(known, snapshot=seen)
    assert "more finding" not in listed(broker)
