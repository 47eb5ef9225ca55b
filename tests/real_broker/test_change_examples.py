"""The Python examples of docs/scheduled-changes.md, run as they are written there."""

from __future__ import annotations

import inspect
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from celery import Celery, Task

from delayboard.changes.take import CHANGE_HEADER
from tests.brokers import Vhost
from tests.builders import address_of, eventually
from tests.publishing import publisher
from topology.broker.amqp.consumer import getter
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import DOUBLED_HEADER, Publish

TEXT = (Path(__file__).parents[2] / "docs" / "scheduled-changes.md").read_text()
PIKA, CELERY = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


class Database:
    """SQLite with the placeholders of psycopg; one message is cancelled."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:")
        self._connection.execute("CREATE TABLE cancelled (message_id TEXT PRIMARY KEY, until TEXT)")
        self._connection.execute("INSERT INTO cancelled VALUES ('b', '2030-01-01')")

    def execute(self, sql: str, values: tuple[str, ...]) -> sqlite3.Cursor:
        return self._connection.execute(sql.replace("%s", "?"), values)


# In a process of its own: this one reads properties in Delayboard's way.
PROGRAM = """
from __future__ import annotations
import sqlite3, sys
import pika
{database}
def work(body):
    print(body.decode(), flush=True)
    if body == b"c":
        sys.exit("The work failed.")

channel = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()
db = Database()
{example}
"""


def test_a_consumer_of_pika_acknowledges_a_cancelled_message_without_work(vhost: Vhost) -> None:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("invoices"))
    with publisher(address_of(vhost), "test") as channel:
        for name in "abc":
            properties = build_properties({}, message_id=name, delivery_mode=2)
            channel.publish(Publish("", "invoices", properties, name.encode()))
    program = PROGRAM.format(database=inspect.getsource(Database), example=PIKA)
    command = [sys.executable, "-c", program, vhost.amqp_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("a\nc\n", "The work failed.\n")
    with getter(address_of(vhost), "invoices") as queue:
        # Only the one whose work failed comes back.
        left = eventually(queue.get, "it comes back")
        assert left.message.properties.message_id == "c"
        assert queue.get() is None


def test_a_task_of_celery_that_is_cancelled_does_nothing() -> None:
    names: dict[str, Any] = {"app": Celery("examples"), "Task": Task, "db": Database()}
    exec(PIKA.partition("\n\n\n")[0], names)
    exec(CELERY, names)
    task, done = names["send_invoice"], list[int]()
    task.run = done.append
    for number, name in enumerate("abc"):
        task.apply(args=(number,), task_id=name).get()
    assert done == [0, 2]
    assert task.acks_late


def test_the_document_names_the_headers_that_delayboard_adds() -> None:
    assert f"| `{CHANGE_HEADER}` |" in TEXT
    assert f"| `{DOUBLED_HEADER}` |" in TEXT
