"""Rows as earlier versions wrote them, with the models of their time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.topology.builders import NOON


def create_replays(apps: Any) -> None:
    """Replays that take messages out of the queues “draft”, “ended” and “running”."""
    broker = apps.get_model("topology", "Broker").objects.create(name="Replays", slug="replays")
    _create_batch(apps, broker, "draft", "", ["pending", "pending"])
    _create_batch(apps, broker, "ended", "done", ["done", "confirmed", "gone", "returned"])
    _create_batch(apps, broker, "running", "running", ["done", "publishing", "pending"])


def _create_batch(apps: Any, broker: Any, queue: str, work_state: str, states: list[str]) -> None:
    work = None
    if work_state:
        works = apps.get_model("topology", "Work").objects
        work = works.create(kind="replay", subject=1, broker=broker, state=work_state)
    batches = apps.get_model("delayboard", "ReplayBatch").objects
    batch = batches.create(broker=broker, queue=queue, work=work)
    for position, state in enumerate(states, start=1):
        batch.items.create(
            position=position,
            content_id="c",
            message_id=f"m{position}",
            size=2,
            target_exchange="orders",
            target_key="orders" if position < 3 else "other",
            verdict="Arrives in orders at once.",
            state=state,
        )


def create_waiting_message(apps: Any) -> None:
    """A scheduled message of a topology, with the text that is searched of it."""
    broker = apps.get_model("topology", "Broker").objects.get()
    topology = apps.get_model("topology", "Topology").objects.create(
        slug="t", name="T", kind="retry_pair", broker=broker, params={}
    )
    message = apps.get_model("analytics", "ScheduledMessage").objects.create(
        broker=broker,
        topology=topology,
        key="k",
        attempt=1,
        requested_delay=timedelta(0),
        due_at=NOON,
        entered_at=NOON,
    )
    texts = apps.get_model("analytics", "ScheduledText").objects
    texts.create(message=message, text="searched", check_at=NOON)
