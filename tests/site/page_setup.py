"""What tests of pages share: what is known of a broker, who is signed in, every address."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from django.test import Client
from django.urls import reverse

from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.replay import make_draft
from delayboard.dead_letters.replay.options import Options
from delayboard.models import ParkedChange, Parking, Publication, ReplayBatch, TargetMode
from tests.builders import make_user
from tests.delayboard.builders import parked
from topology import snapshots
from topology.definitions import Definitions, Queue
from topology.message import Message, Properties
from topology.models import Broker, Role, Topology
from topology.snapshot import QueueNumbers, Snapshot
from topology.snapshots import Latest


def know(broker: Broker, *objects: Any, error: str = "", **numbers: int | None) -> Snapshot:
    """Fill what this process knows of a broker, for longer than any test takes."""
    definitions = Definitions.of(objects)
    now = datetime.now(UTC)
    snapshot = Snapshot(
        version="3.10.8",
        taken_at=now - timedelta(minutes=7),
        definitions=definitions,
        declared=definitions,
        numbers={
            queue.name: QueueNumbers(numbers.get(queue.name, 0), 0, 0, 0)
            for queue in definitions.queues
        },
    )
    snapshots._latest[broker.pk] = Latest(snapshot, now + timedelta(days=1), error)
    return snapshot


def signed_in(role: Role | None = None, broker: Broker | None = None) -> Client:
    client = Client()
    client.force_login(make_user(f"user-{uuid4()}", role, broker))
    return client


def parked_messages(*bodies: bytes) -> tuple[peek.PeekedMessage, ...]:
    return peek.number_messages([Message("", "parked", Properties(), body) for body in bodies])


def draft(broker: Broker, *, key: str = "parked-work") -> ReplayBatch:
    """A replay of two messages of the queue `parked`, to the queue of this name."""
    know(broker, Queue("parked"), Queue("parked-work"))
    found = [Message("", "parked", Properties(), body) for body in (b"1", b"2")]
    keys = [row.pk for row in parked(broker, *found, queue="parked")]
    return make_draft.draft_messages(None, broker, keys, Options(mode=TargetMode.TYPED, key=key))


def text_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.status_code
    text: str = answer.content.decode()
    return text


def pages(pair: Topology) -> dict[str, str]:
    """Every page to look at, by the name of its address; a queue's page is without its name."""
    replay = draft(pair.broker)
    parked_message = parked(pair.broker, Message("", "parked", Properties(), b"secret-body"))[0]
    parking = Parking.objects.create(broker=pair.broker, queue="parked")
    change = ParkedChange.objects.create(broker=pair.broker, newest=0, requested=0)
    message = Publication.objects.create(broker=pair.broker, size=1, exchange="secret-exchange")
    addresses = {
        name: reverse(name)
        for name in (
            "now",
            "search",
            "system",
            "demo",
            "publish",
            "dead_letters",
            "retrying_anywhere",
            "replays",
            "topology:brokers",
            "topology:broker_add",
            "topology:topologies",
            "topology:patterns",
            "topology:topology_add",
            "topology:audit",
            "topology:findings_overview",
        )
    }
    return addresses | {
        "publication": reverse("publication", args=[message.pk]),
        "dead_letter_queue": f"{reverse('dead_letter_queue', args=['test-broker'])}?name=parked",
        "live_search": reverse("live_search", args=["test-broker"]),
        "replay_batch": reverse("replay_batch", args=[replay.pk]),
        "replay_item": reverse("replay_item", args=[replay.pk, 1]),
        "broker_start": reverse("broker_start", args=["test-broker"]),
        "firehose": reverse("firehose", args=["test-broker"]),
        "parked_messages": reverse("parked_messages", args=["test-broker"]),
        "parked_messages_export": reverse("parked_messages_export", args=["test-broker"])
        + "?as=csv",
        "parked_message": reverse("parked_message", args=["test-broker", parked_message.pk]),
        "parked_message_body": reverse(
            "parked_message_body", args=["test-broker", parked_message.pk]
        ),
        "message_group": reverse("message_group", args=["test-broker", parked_message.group_id]),
        "merge_message_groups": reverse("merge_message_groups", args=["test-broker"]) + "?group=1",
        "redaction": reverse("redaction", args=["test-broker"]),
        "client_conventions": reverse("client_conventions", args=["test-broker"]),
        "parking": reverse("parking", args=["test-broker", parking.pk]),
        "parked_messages_change": reverse(
            "parked_messages_change", args=["test-broker", change.pk]
        ),
        "retrying": reverse("retrying", args=["test-broker"]),
        "topology:broker": reverse("topology:broker", args=["test-broker"]),
        "topology:broker_edit": reverse("topology:broker_edit", args=["test-broker"]),
        "topology:discovered": reverse("topology:discovered", args=["test-broker"]),
        "topology:findings": reverse("topology:findings", args=["test-broker"]),
        "topology:finding_history": reverse("topology:finding_history", args=["test-broker"]),
        "topology:finding": reverse("topology:finding", args=["test-broker", "f01-gone"]),
        "topology:vhost": reverse("topology:vhost", args=["test-broker"]),
        "topology:trace_route": reverse("topology:trace_route", args=["test-broker"])
        + "?routing_key=work",
        "topology:topology": reverse("topology:topology", args=[pair.slug]),
        "topology:topology_edit": reverse("topology:topology_edit", args=[pair.slug]),
        "topology:topology_export": reverse("topology:topology_export", args=[pair.slug])
        + "?format=terraform",
        "topology:explain": reverse("topology:explain", args=["retry_pair"]),
    }


def actions(pair: Topology) -> dict[str, str]:
    """Every address that only takes POST, by its name."""
    replay = draft(pair.broker)
    return {
        "firehose_switch": reverse("firehose_switch", args=["test-broker"]),
        "topology:broker_test": reverse("topology:broker_test", args=["test-broker"]),
        "topology:definitions_import": reverse("topology:definitions_import", args=["test-broker"]),
        "topology:discovered_adopt": reverse("topology:discovered_adopt", args=["test-broker"]),
        "topology:finding_mute": reverse("topology:finding_mute", args=["test-broker", "f01-gone"]),
        "topology:finding_unmute": reverse(
            "topology:finding_unmute", args=["test-broker", "f01-gone"]
        ),
        "topology:topology_record": reverse("topology:topology_record", args=[pair.slug]),
        "delay_migration_request": reverse("delay_migration_request", args=[pair.slug]),
        "delay_migration_pause": reverse("delay_migration_pause", args=[pair.slug]),
        "delay_migration_continue": reverse("delay_migration_continue", args=[pair.slug]),
        "topology:topology_apply": reverse("topology:topology_apply", args=[pair.slug]),
        "topology:topology_replace": reverse("topology:topology_replace", args=[pair.slug]),
        "topology:topology_unbind": reverse("topology:topology_unbind", args=[pair.slug]),
        "topology:topology_bodies": reverse("topology:topology_bodies", args=[pair.slug]),
        "topology:topology_probes": reverse("topology:topology_probes", args=[pair.slug]),
        "topology:topology_teardown": reverse("topology:topology_teardown", args=[pair.slug]),
        "check_queues": reverse("check_queues", args=["test-broker"]),
        "dead_letter_queue_decide": reverse("dead_letter_queue_decide", args=["test-broker"]),
        "message_group_edit": reverse("message_group_edit", args=["test-broker", 1]),
        "undo_merge": reverse("undo_merge", args=["test-broker", 1]),
        "parked_messages_discard": reverse("parked_messages_discard", args=["test-broker"]),
        "parked_messages_restore": reverse("parked_messages_restore", args=["test-broker"]),
        "parked_messages_import": reverse("parked_messages_import", args=["test-broker"]),
        "parked_messages_change_cancel": reverse(
            "parked_messages_change_cancel", args=["test-broker", 1]
        ),
        "redaction_rule_change": reverse("redaction_rule_change", args=["test-broker"]),
        **{
            f"client_convention_{name}": reverse(f"client_convention_{name}", args=["test-broker"])
            for name in ("save", "delete", "import")
        },
        "park": reverse("park", args=["test-broker"]),
        "parking_cancel": reverse("parking_cancel", args=["test-broker", 1]),
        "watch": reverse("watch", args=["test-broker"]),
        "parked_messages_replay": reverse("parked_messages_replay", args=["test-broker"]),
        "group_redirect": reverse("group_redirect", args=["test-broker", 1]),
        "replay_prepare": reverse("replay_prepare", args=["test-broker"]),
        "move_queue_start": reverse("move_queue_start", args=["test-broker"]),
        "move_queue_stop": reverse("move_queue_stop", args=["test-broker"]),
        "replay_item": reverse("replay_item", args=[replay.pk, 1]),
        **{
            f"replay_{name}": reverse(f"replay_{name}", args=[replay.pk])
            for name in ("start", "pause", "resume", "cancel", "options", "rest")
        },
    }
