"""On a production broker, what publishes or discards messages asks for the broker's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from delayboard.models import BatchState, DelayMigration, ParkedState, Publication, ReplayBatch
from tests.builders import make_broker, make_pair
from tests.site.page_setup import actions, draft, know, pages, signed_in, text_of
from tests.site.replay_desk import some
from topology.definitions import Queue
from topology.models import AuditEntry, Broker, Role, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import delay_levels

pytestmark = pytest.mark.django_db

BUTTON = "{} on live</button>"
# What publishes or deletes nothing in the broker, or ends, delays and undoes such an action; a
# topology's teardown, unbinding and replacement, and the firehose, ask for the name in their own
# forms.
NOT_ASKED = {
    "firehose_switch",
    "topology:broker_test",
    "topology:definitions_import",
    "topology:finding_mute",
    "topology:finding_unmute",
    "topology:discovered_adopt",
    "topology:topology_record",
    "delay_migration_request",
    "delay_migration_pause",
    "delay_migration_continue",
    "topology:topology_apply",
    "topology:topology_replace",
    "topology:topology_unbind",
    "topology:topology_bodies",
    "topology:topology_probes",
    "topology:topology_teardown",
    "merge_message_groups",
    "undo_merge",
    "check_queues",
    "dead_letter_queue_decide",
    "message_group_edit",
    "parked_messages_restore",
    "parked_messages_import",
    "parked_messages_change_cancel",
    "redaction_rule_change",
    "client_convention_save",
    "client_convention_delete",
    "client_convention_import",
    "park",
    "parking_cancel",
    "watch",
    "parked_messages_replay",
    "group_redirect",
    "replay_prepare",
    "move_queue_stop",
    "replay_item",
    "replay_pause",
    "replay_resume",
    "replay_cancel",
    "replay_options",
    "replay_rest",
}


@pytest.fixture(autouse=True)
def production(broker: Broker) -> None:
    know(broker, Queue("parked"), Queue("parked-work"))
    Broker.objects.update(is_production=True, environment="live")


def test_every_action_is_asked_about_or_known_not_to_be(pair: Topology) -> None:
    client = signed_in(Role.ADMIN)
    addresses = actions(pair)
    asked = set()
    for name in addresses.keys() - NOT_ASKED:
        if "to confirm</label>" in text_of(client.post(addresses[name])):
            asked.add(name)
    assert (
        asked
        == addresses.keys() - NOT_ASKED
        == {
            "parked_messages_discard",
            "replay_start",
            "move_queue_start",
        }
    )


@pytest.mark.parametrize("typed", ["", "test broker", "Test broker2"])
def test_a_discard_needs_the_name(broker: Broker, typed: str) -> None:
    rows = some(broker)
    client, address = (
        signed_in(Role.OPERATOR),
        reverse("parked_messages_discard", args=[broker.slug]),
    )
    sent = {"parked_message": [row.pk for row in rows]}
    text = text_of(client.post(address, sent | {"confirm_broker": typed}))
    assert BUTTON.format("Discard messages") in text
    assert "Delayboard changed nothing. Test broker is a production broker (live)." in text
    for row in rows:
        assert f'name="parked_message" value="{row.pk}"' in text
        row.refresh_from_db()
        assert row.state == ParkedState.PARKED
    client.post(address, sent | {"confirm_broker": " Test broker "})
    rows[0].refresh_from_db()
    assert rows[0].state == ParkedState.DISCARDED


def test_a_replay_needs_the_name_and_keeps_what_was_typed(broker: Broker) -> None:
    made = draft(broker, key="nowhere")
    Broker.objects.update(is_production=True, environment="live")
    client, address = signed_in(Role.OPERATOR), reverse("replay_start", args=[made.pk])
    text = text_of(client.post(address, {"typed": "yes"}))
    assert BUTTON.format("Start replay") in text
    assert "2 parked messages are published in the virtual host nowhere." in text
    assert 'name="typed" value="yes"' in text
    assert reverse("replay_batch", args=[made.pk]) in text
    assert ReplayBatch.objects.get().state == BatchState.DRAFT
    assert not AuditEntry.objects.filter(action="replay started").exists()
    client.post(address, {"typed": "yes", "confirm_broker": "Test broker"})
    assert ReplayBatch.objects.get().state == BatchState.RUNNING
    text_of(client.post(reverse("replay_cancel", args=[made.pk]), follow=True))
    assert ReplayBatch.objects.get().is_ended


def test_a_replay_counts_what_it_will_send(broker: Broker) -> None:
    made = draft(broker)
    ReplayBatch.objects.update(selected=3300, excluded=300)
    Broker.objects.update(is_production=True, environment="live")
    text = text_of(signed_in(Role.OPERATOR).post(reverse("replay_start", args=[made.pk])))
    assert "3\u202f000 parked messages are published in the virtual host nowhere." in text
    assert "Possible repeats that remain parked: 300." in text


def test_publishing_needs_the_name(broker: Broker) -> None:
    client = signed_in(Role.OPERATOR)
    values = {"broker": broker.slug, "routing_key": "parked", "body": "<b>", "send": "1"}
    text = text_of(client.post(reverse("publish"), values))
    assert BUTTON.format("Publish message") in text
    assert 'name="body" value="&lt;b&gt;"' in text
    assert Publication.objects.count() == 0
    client.post(reverse("publish"), values | {"confirm_broker": "Test broker"})
    assert Publication.objects.count() == 1


def test_a_prediction_is_free(broker: Broker) -> None:
    values = {"broker": broker.slug, "routing_key": "parked", "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "to confirm</label>" not in text


def test_no_page_of_another_broker_asks(pair: Topology) -> None:
    Broker.objects.update(is_production=False)
    client = signed_in(Role.ADMIN)
    for name in ("parked_messages_discard", "replay_start"):
        assert client.post(actions(pair)[name]).status_code == 302
    assert pages(pair)


def test_a_replay_from_a_shell_needs_the_name(broker: Broker) -> None:
    made = draft(broker)
    Broker.objects.update(is_production=True, environment="live")
    said = r"Nothing was replayed. Test broker is a production broker \(live\)\. "
    step = rf"Use --resume {made.pk} --confirm “Test broker”\."
    for option in ("", "test broker"):
        with pytest.raises(CommandError, match=said + step):
            call_command(
                "replay_dead_letters", broker.slug, resume=made.pk, confirm=[option], yes=True
            )
    assert ReplayBatch.objects.get().state == BatchState.DRAFT


def test_a_migration_from_a_shell_needs_the_names_of_both_brokers(
    pair: Topology, broker: Broker
) -> None:
    other = make_broker(name="Other broker")
    target = make_pair(other)
    Broker.objects.update(is_production=True, environment="live")
    both = "Use --confirm “Other broker” --confirm “Test broker”"
    with pytest.raises(CommandError, match=both):
        call_command("migrate_delays", pair.slug, target.slug)
    one = ("--confirm", broker.name)
    with pytest.raises(CommandError, match="Use --confirm “Test broker” --confirm “Other broker”"):
        call_command("migrate_delays", pair.slug, target.slug, *one)
    # The names are enough: next is why these two do not fit.
    with pytest.raises(CommandError, match="Only messages of delay levels"):
        call_command("migrate_delays", pair.slug, target.slug, *one, "--confirm", other.name)


def test_a_migration_needs_the_names_of_both_brokers(broker: Broker) -> None:
    source, target = (
        create_topology(None, one, delay_levels.KIND, levels.Params("own", name))
        for one, name in ((broker, "a"), (make_broker(name="Other broker"), "b"))
    )
    Broker.objects.update(is_production=True, environment="live")
    Topology.objects.update(state=State.APPLIED)
    client = signed_in(Role.OPERATOR)
    address = reverse("delay_migration_request", args=[source.slug])
    form = {"target": target.slug, "confirm_broker": "Test broker"}
    text = text_of(client.post(address, form))
    assert 'Type <span class="name">Other broker</span> to confirm' in text
    assert 'name="confirm_broker" value="Test broker"' in text
    assert "changed nothing" not in text
    text = text_of(client.post(address, form | {"confirm_target": "Test broker"}))
    assert "Other broker is a production broker (live)." in text
    assert not DelayMigration.objects.exists()
    client.post(address, form | {"confirm_target": "Other broker"})
    assert DelayMigration.objects.count() == 1


def test_publishing_from_a_file_needs_the_name(pair: Topology, tmp_path: Path) -> None:
    file = tmp_path / "timeouts.jsonl"
    file.write_text("{}\n")
    said = r"Nothing was published. Test broker is a production broker \(live\)\. Use --confirm"
    with pytest.raises(CommandError, match=said):
        call_command("publish", "--topology", pair.slug, "--file", str(file))
