"""What tests of pages share: what is known of a broker, who is signed in, every address."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from django.test import Client
from django.urls import reverse

from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.replay import select
from delayboard.dead_letters.replay.options import Options
from delayboard.models import LetterChange, Parking, Publication, ReplayBatch, TargetMode
from tests.builders import make_user
from tests.delayboard.builders import parked
from topology import latest
from topology.definitions import Definitions, Queue
from topology.latest import Latest
from topology.message import Message, Properties
from topology.models import Broker, Role, Topology
from topology.snapshot import QueueNumbers, Snapshot


def know(broker: Broker, *things: Any, error: str = "", **numbers: int) -> Snapshot:
    """Fill what this process knows of a broker, for longer than any test takes."""
    definitions = Definitions.of(things)
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
    latest._latest[broker.pk] = Latest(snapshot, now + timedelta(days=1), error)
    return snapshot


def signed_in(role: Role | None = None, broker: Broker | None = None) -> Client:
    client = Client()
    client.force_login(make_user(f"user-{uuid4()}", role, broker))
    return client


def letters(*bodies: bytes) -> tuple[peek.Letter, ...]:
    return peek.number([Message("", "parked", Properties(), body) for body in bodies])


def draft(broker: Broker, *, key: str = "parked-work") -> ReplayBatch:
    """A replay of two letters of the queue `parked`, to the queue of this name."""
    know(broker, Queue("parked"), Queue("parked-work"))
    found = [Message("", "parked", Properties(), body) for body in (b"1", b"2")]
    keys = [row.pk for row in parked(broker, *found, queue="parked")]
    return select.of_letters(None, broker, keys, Options(mode=TargetMode.TYPED, key=key))


def text_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.status_code
    text: str = answer.content.decode()
    return text


def pages(pair: Topology) -> dict[str, str]:
    """Every page to look at, by the name of its address; a queue's page is without its name."""
    replay = draft(pair.broker)
    letter = parked(pair.broker, Message("", "parked", Properties(), b"secret-body"))[0]
    parking = Parking.objects.create(broker=pair.broker, queue="parked")
    change = LetterChange.objects.create(broker=pair.broker, newest=0, asked=0)
    message = Publication.objects.create(broker=pair.broker, size=1, exchange="secret-exchange")
    addresses = {
        name: reverse(name)
        for name in (
            "now",
            "publish",
            "dead_letters",
            "retrying_anywhere",
            "replays",
            "topology:brokers",
            "topology:broker_add",
            "topology:topologies",
            "topology:topology_add",
            "topology:audit",
        )
    }
    return addresses | {
        "publication": reverse("publication", args=[message.pk]),
        "dead_letter_queue": f"{reverse('dead_letter_queue', args=['test-broker'])}?name=parked",
        "replay_batch": reverse("replay_batch", args=[replay.pk]),
        "replay_item": reverse("replay_item", args=[replay.pk, 1]),
        "firehose": reverse("firehose", args=["test-broker"]),
        "letters": reverse("letters", args=["test-broker"]),
        "letters_export": reverse("letters_export", args=["test-broker"]) + "?as=csv",
        "letter": reverse("letter", args=["test-broker", letter.pk]),
        "letter_body": reverse("letter_body", args=["test-broker", letter.pk]),
        "letter_group": reverse("letter_group", args=["test-broker", letter.group_id]),
        "merge_letter_groups": reverse("merge_letter_groups", args=["test-broker"]) + "?group=1",
        "masks": reverse("masks", args=["test-broker"]),
        "parking": reverse("parking", args=["test-broker", parking.pk]),
        "letters_change": reverse("letters_change", args=["test-broker", change.pk]),
        "retrying": reverse("retrying", args=["test-broker"]),
        "topology:broker": reverse("topology:broker", args=["test-broker"]),
        "topology:broker_edit": reverse("topology:broker_edit", args=["test-broker"]),
        "topology:found": reverse("topology:found", args=["test-broker"]),
        "topology:vhost": reverse("topology:vhost", args=["test-broker"]),
        "topology:where": reverse("topology:where", args=["test-broker"]) + "?routing_key=work",
        "topology:topology": reverse("topology:topology", args=[pair.slug]),
        "topology:explain": reverse("topology:explain", args=["retry_pair"]),
    }


def actions(pair: Topology) -> dict[str, str]:
    """Every address that only takes POST, by its name."""
    replay = draft(pair.broker)
    return {
        "firehose_switch": reverse("firehose_switch", args=["test-broker"]),
        "topology:broker_test": reverse("topology:broker_test", args=["test-broker"]),
        "topology:found_adopt": reverse("topology:found_adopt", args=["test-broker"]),
        "topology:topology_record": reverse("topology:topology_record", args=[pair.slug]),
        "topology:topology_apply": reverse("topology:topology_apply", args=[pair.slug]),
        "topology:topology_unbind": reverse("topology:topology_unbind", args=[pair.slug]),
        "topology:topology_bodies": reverse("topology:topology_bodies", args=[pair.slug]),
        "topology:topology_teardown": reverse("topology:topology_teardown", args=[pair.slug]),
        "letter_queue_decide": reverse("letter_queue_decide", args=["test-broker"]),
        "letter_group_edit": reverse("letter_group_edit", args=["test-broker", 1]),
        "undo_merge": reverse("undo_merge", args=["test-broker", 1]),
        "letter_searches": reverse("letter_searches", args=["test-broker"]),
        "letters_discard": reverse("letters_discard", args=["test-broker"]),
        "letters_restore": reverse("letters_restore", args=["test-broker"]),
        "letters_import": reverse("letters_import", args=["test-broker"]),
        "letters_change_cancel": reverse("letters_change_cancel", args=["test-broker", 1]),
        "mask_change": reverse("mask_change", args=["test-broker"]),
        "park": reverse("park", args=["test-broker"]),
        "parking_cancel": reverse("parking_cancel", args=["test-broker", 1]),
        "watch": reverse("watch", args=["test-broker"]),
        "letters_replay": reverse("letters_replay", args=["test-broker"]),
        "group_redirect": reverse("group_redirect", args=["test-broker", 1]),
        "replay_prepare": reverse("replay_prepare", args=["test-broker"]),
        "queue_replay": reverse("queue_replay", args=["test-broker"]),
        "replay_item": reverse("replay_item", args=[replay.pk, 1]),
        **{
            f"replay_{name}": reverse(f"replay_{name}", args=[replay.pk])
            for name in ("start", "pause", "resume", "cancel", "options", "rest")
        },
    }
