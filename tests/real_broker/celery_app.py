"""A Celery application with quorum queues, as its documentation has it; `test_celery` runs it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.update(
    task_default_queue="orders",
    task_default_queue_type="quorum",
    # Delayed tasks of a direct exchange, the default, block the worker instead.
    task_default_exchange_type="topic",
    worker_detect_quorum_queues=True,
    # Without it, what a program publishes right before it ends may never reach the broker.
    broker_transport_options={"confirm_publish": True},
    broker_native_delayed_delivery_queue_type=os.environ["SHOP_LEVELS"],
)


@app.task(name="note")
def note(path: str) -> None:
    """Write down when it ran, in seconds since 1970."""
    Path(path).write_text(str(time.time()))
