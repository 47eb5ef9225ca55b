"""One flood on a node of its own, told line by line."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import ExitStack

from django.conf import settings
from django.core.management import call_command

from delayboard.demo.processes import marked_processes
from tests.brokers import Vhost, root_of
from tests.builders import address_of, applied_pair
from tests.faults.processes import environment, started
from tests.flood.counting import times_recorded
from tests.flood.generator import Flood
from tests.flood.measured import cpu_seconds, samples
from tests.rooted import make_node


def try_out(arguments: Namespace) -> int:
    call_command("migrate", verbosity=0)
    root = root_of(arguments.generation)
    with make_node(settings.VAR / "node", "flood", 1000, root) as node, ExitStack() as stack:
        urls = (node.amqp_url, node.management_url)
        vhost = Vhost(*urls, "/", node.username, node.password)
        topology = applied_pair(vhost, delay="1h")
        flood = Flood(
            address_of(vhost), "orders-retry", "orders", arguments.rate, arguments.seconds
        )
        if arguments.alone:
            before = cpu_seconds(marked_processes(node.folder))
            flood.start()
            flood.join()
            used = cpu_seconds(marked_processes(node.folder)) - before
            say(f"broker's CPU {used / flood.took_seconds:.0%}")
        else:
            only = ("--only", "recorder") if arguments.only_recorder else ()
            worker = stack.enter_context(started("worker", *only, variables=environment()))
            flood.start()
            for sample in samples(
                flood, settings.EVENT_LOG, worker.pid, node.folder, patience=arguments.patience
            ):
                say(str(sample))
                used, recorded = cpu_seconds([worker.pid]), sample.recorded
            flood.join()
            say(f"the worker's CPU: {used / max(1, recorded) * 1e6:.0f} microseconds an event")
        if flood.error:
            say(f"the flood ended early: {flood.error}")
        say(
            f"RabbitMQ {node.version}, tap {topology.tap_type or 'classic'}: "
            f"sent {flood.sent} in {flood.took_seconds:.1f} s, "
            f"{flood.sent / flood.took_seconds:.0f}/s at "
            f"{flood.cpu_seconds / flood.took_seconds:.1%} of a processor"
        )
        if not arguments.alone:
            times = times_recorded(settings.EVENT_LOG, flood.sent)
            say(f"messages by how often they are in the log: {dict(times)}")
    return 1 if flood.error else 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
