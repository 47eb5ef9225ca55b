from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from delayboard.models import Publication
from tests.site.page_setup import actions, draft, know, pages, signed_in, text_of
from topology.models import AuditEntry, Role, State, Topology, Work

pytestmark = pytest.mark.django_db


def test_an_anonymous_visitor_is_sent_to_the_login_from_everywhere(pair: Topology) -> None:
    client = Client()
    answers = [client.get(address) for address in pages(pair).values()]
    answers += [client.post(address) for address in actions(pair).values()]
    answers += [client.post(reverse("topology:topology_verify", args=[pair.slug]))]
    for answer in answers:
        assert answer.status_code == 302
        assert answer["Location"].startswith(reverse("login"))


def test_a_user_without_a_grant_sees_nothing_of_a_broker(pair: Topology) -> None:
    client = signed_in()
    codes = {name: client.get(address).status_code for name, address in pages(pair).items()}
    assert {name for name, code in codes.items() if code == 404} == {
        "publication",
        "dead_letter_queue",
        "parked_message",
        "parked_message_body",
        "message_group",
        "parked_messages",
        "parked_messages_change",
        "parked_messages_export",
        "merge_message_groups",
        "redaction",
        "client_conventions",
        "parking",
        "live_search",
        "replay_batch",
        "replay_item",
        "firehose",
        "retrying",
        "broker_start",
        "topology:broker",
        "topology:broker_edit",
        "topology:discovered",
        "topology:findings",
        "topology:finding",
        "topology:finding_history",
        "topology:vhost",
        "topology:trace_route",
        "topology:topology",
        "topology:topology_edit",
        "topology:topology_export",
    }
    assert {name for name, code in codes.items() if code == 403} == {
        "topology:broker_add",
        "topology:topology_add",
        "topology:audit",
    }
    assert {client.post(address).status_code for address in actions(pair).values()} == {404}
    for name in (
        "now",
        "system",
        "topology:brokers",
        "topology:topologies",
        "dead_letters",
        "replays",
    ):
        text = text_of(client.get(reverse(name)))
        assert "Test broker" not in text
        assert "orders" not in text


@pytest.mark.parametrize(
    ("role", "refused"),
    [
        (
            Role.VIEWER,
            {
                "broker_start",
                "parked_message",
                "parked_message_body",
                "parked_messages_export",
                "redaction",
                "merge_message_groups",
                "client_conventions",
                "replay_item",
                "topology:broker_add",
                "topology:broker_edit",
                "topology:topology_add",
                "topology:topology_edit",
                "topology:audit",
            },
        ),
        (
            Role.OPERATOR,
            {"redaction", "topology:broker_add", "topology:broker_edit", "topology:audit"},
        ),
        (Role.ADMIN, {"topology:broker_add"}),
    ],
)
def test_a_role_on_one_broker_opens_the_pages_it_covers(
    pair: Topology, role: Role, refused: set[str]
) -> None:
    client = signed_in(role, pair.broker)
    answers = {name: client.get(address).status_code for name, address in pages(pair).items()}
    assert {name for name, code in answers.items() if code == 403} == refused
    assert set(answers.values()) == {200, 403}


def test_an_admin_of_all_brokers_may_open_every_page(pair: Topology) -> None:
    client = signed_in(Role.ADMIN)
    assert {client.get(address).status_code for address in pages(pair).values()} == {200}


def test_a_viewer_is_refused_every_action_on_the_server(pair: Topology) -> None:
    client = signed_in(Role.VIEWER, pair.broker)
    asked = actions(pair)
    before = AuditEntry.objects.count()
    for address in asked.values():
        text = client.post(address, {"name": "orders", "typed": "yes"})
        assert text.status_code == 403
        assert b"Delayboard changed nothing" in text.content
    look = f"{reverse('dead_letter_queue', args=['test-broker'])}?name=parked"
    assert client.post(look).status_code == 403
    sent = client.post(reverse("publish"), {"broker": pair.broker.slug, "send": "1"})
    assert "Permission denied" in text_of(sent)
    pair.refresh_from_db()
    assert (pair.state, Work.objects.count()) == (State.PLANNED, 0)
    assert (AuditEntry.objects.count(), Publication.objects.count()) == (before, 0)


@pytest.mark.parametrize(("role", "shown"), [(Role.VIEWER, False), (Role.OPERATOR, True)])
def test_actions_are_offered_to_those_who_may(pair: Topology, role: Role, shown: bool) -> None:
    know(pair.broker)
    client = signed_in(role, pair.broker)
    text = text_of(client.get(reverse("topology:topology", args=[pair.slug])))
    assert (reverse("topology:topology_apply", args=[pair.slug]) in text) is shown
    text = text_of(client.get(reverse("topology:topology_settings", args=[pair.slug])))
    assert (reverse("topology:topology_teardown", args=[pair.slug]) in text) is shown
    text = text_of(client.get(reverse("topology:broker", args=["test-broker"])))
    assert (reverse("topology:broker_test", args=["test-broker"]) in text) is shown
    text = text_of(client.get(reverse("replay_batch", args=[draft(pair.broker).pk])))
    assert ("Start replay" in text) is shown
    text = text_of(client.get(pages(pair)["dead_letter_queue"]))
    assert ("Reading messages needs the role operator" in text) is not shown


def test_a_page_that_needs_a_form_token_has_one(pair: Topology) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.create_superuser("root"))
    for address in actions(pair).values():
        assert strict.post(address).status_code == 403
