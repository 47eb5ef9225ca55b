"""The commands that findings offer to copy, in a shell beside the node."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import certifi
import pytest

from delayboard.demo import node as nodes
from delayboard.demo.node import PrivateNode
from tests.brokers import NEWEST, Vhost, call_api
from tests.builders import address_of, eventually
from tests.topology.findings.examples import EXAMPLES
from tests.topology.findings.examples.example import Example
from tests.topology.findings.test_classic_mistakes import MISTAKES
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Arguments, Definitions, Exchange, Queue
from topology.findings import hit
from topology.findings.find import RULES as EVERY_RULE
from topology.findings.find import find
from topology.findings.hit import Admin, Severity

KEY = "it's a $KEY"
LOST = {"x-dead-letter-exchange": "it's gone", "x-dead-letter-routing-key": KEY}
DELAY: dict[str, str | int] = {
    "x-queue-type": "quorum",
    "x-message-ttl": 60_000,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "work-1",
}
# Notes with a command: at most once, and a delivery limit without dead letters.
RULES = {"F01", "F02", "F03", "F09", "F10", "F17", "F25", "F26"}
THINGS = Definitions.of(
    [
        # Without the one whose place "it's lost" has.
        *MISTAKES[1:],
        Queue("it's lost", arguments=Arguments(LOST)),
        Exchange("orders", arguments=Arguments({"alternate-exchange": "un'routed"})),
        *(Queue(name) for name in ("rescue", "work-1", "work-2")),
        Queue("jobs", arguments=Arguments({"x-queue-type": "quorum"})),
        Queue("hurry", arguments=Arguments({**DELAY, "x-dead-letter-strategy": "at-least-once"})),
        Queue("delay", arguments=Arguments(DELAY)),
    ]
)


# Rule F26 is about the delivery limit of RabbitMQ 4.
@pytest.mark.generations("4.0", NEWEST, only=True)
def test_the_commands_of_findings_resolve_them(broker_node: PrivateNode, vhost: Vhost) -> None:
    """With the rabbitmqctl and rabbitmqadmin of the package: the Python one, and 2."""
    path = f"definitions/{vhost.name}"
    call_api(broker_node, "POST", path, Example.of(THINGS).definitions())
    with Management(address_of(vhost)) as management:
        found = [one for one in find(observe(management)) if one.commands]
        assert {one.rule.id for one in found} == RULES
        run(broker_node, vhost, [line for one in found for line in one.commands])
        admin = Admin(observe(management).version_tuple)
        odd = ("delays", "work-1", KEY)
        run(broker_node, vhost, [admin.bind(*odd), admin.unbind(*odd)])
        run(
            broker_node,
            vhost,
            [admin.bind("delays", "work-1", ""), admin.unbind("delays", "work-1", "")],
        )
        bound = {one.destination for one in observe(management).definitions.leaving("delays")}
        assert bound == {"five-seconds"}

        def left() -> list[str]:
            now = find(observe(management))
            return [one.title for one in now if one.commands or one.severity > Severity.STYLE]

        eventually(lambda: not left(), "no finding is left")


# Those whose example has a queue, a binding or a setting that a command can repair.
REPAIRED = [
    *(f"F{number:02}" for number in (1, 2, 3, 5, 7, 8, 9, 10, *range(13, 21))),
    *("F23", "F24", "F25", "F26"),
]


@pytest.mark.long
def test_the_commands_of_each_example_resolve_it(broker_node: PrivateNode, vhost: Vhost) -> None:
    """With the rabbitmqadmin that the broker serves, or 2."""
    for rule in EVERY_RULE:
        # RabbitMQ takes neither: the delay plugin is not in the packages.
        if rule.id not in ("F30", "F31"):
            example = EXAMPLES[rule.id].failing.definitions()
            call_api(broker_node, "POST", f"definitions/{vhost.name}", example)
    to_end = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"}
    with Management(address_of(vhost)) as management:
        # F02 where a queue is missing, not a binding, and F08 where the target is a queue.
        astray = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "it's astray"}
        management.declare_queue(Queue("begin-2", arguments=Arguments(astray)))
        management.declare_queue(Queue("end", auto_delete=True))
        management.declare_queue(Queue("begin", arguments=Arguments(to_end)))
        management.declare_queue(Queue("rescue"))

        def find_repaired() -> list[str]:
            return sorted({one.rule.id for one in find(observe(management)) if one.commands})

        eventually(lambda: find_repaired() == REPAIRED, "policies are in force")
        found = [one for one in find(observe(management)) if one.commands]
        run(broker_node, vhost, [line for one in found for line in one.commands])
        eventually(lambda: not find_repaired(), "no finding with a command is left")


def run(node: PrivateNode, vhost: Vhost, lines: list[str]) -> None:
    """In a shell that knows where the node is; the first command that fails ends it."""
    place, name = node._place, f"{node.name}@localhost"
    # rabbitmqadmin does not start without a certificate authority, and the root has none.
    shutil.copy(certifi.where(), node.folder / "authorities.pem")
    account = shlex.join(["--username", node.username, "--password", node.password])
    script = "\n".join(
        [
            "set -eu",
            f"export SSL_CERT_FILE={place.inside}/authorities.pem",
            f'rabbitmqctl() {{ /usr/lib/rabbitmq/bin/rabbitmqctl -n {name} "$@"; }}',
            f"rabbitmqadmin() {{ /usr/bin/rabbitmqadmin --port {node.management_port} {account} "
            '"$@"; }',
            hit.set_vhost(vhost.name),
            *lines,
        ]
    )
    script = script.replace(hit.TARGET_QUEUE, "rescue")
    script = script.replace(hit.TARGET_KEY, shlex.quote(KEY))
    script = script.replace(hit.MAXIMUM_LENGTH, "100000")
    done = subprocess.run(
        place.command("/bin/sh", "-c", script),
        env=nodes.environment(place, node.name, node._known_ports()),
        cwd=node.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
