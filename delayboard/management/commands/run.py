"""manage.py run: the whole of Delayboard from one terminal, with a broker of its own or yours."""

from __future__ import annotations

import os
import secrets
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.urls import reverse

from delayboard.demo.node import NodeError, PrivateNode
from delayboard.demo.run import (
    BrokerUrls,
    CannotRun,
    children,
    keep_running,
    lock_installation,
    own_broker,
    print_line,
    raise_on_interrupt,
    require_free_port,
)
from delayboard.demo.script import DEMO_BROKER
from topology.broker.address import Address, parse_address
from topology.broker.errors import BrokerError
from topology.management.command import BoardCommand
from topology.models import Broker
from topology.operations.connect import add_broker, try_connection


class Command(BoardCommand):
    """Start the private broker (or take yours), the site, the worker and demo traffic."""

    help = "Run a private broker, the site, the worker and demo traffic until Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Addresses come from the environment too: a password in a command line is public."""
        parser.add_argument(
            "--broker",
            default=os.environ.get("BROKER", ""),
            help="AMQP address of your own broker; hosts of a cluster with commas",
        )
        parser.add_argument(
            "--management",
            default=os.environ.get("MANAGEMENT", ""),
            help="its management addresses, separated by commas",
        )
        parser.add_argument("--host", default="127.0.0.1", help="of the site; default: 127.0.0.1")
        parser.add_argument(
            "--port",
            type=int,
            default=settings.SERVE_PORT,
            help="of the site; default: PORT, else 8000",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Set up, then watch until Ctrl-C or SIGTERM. Raises CommandError in one sentence."""
        try:
            own = own_broker(options["broker"], options["management"])
            with lock_installation(settings.VAR), raise_on_interrupt():
                require_free_port(options["port"])
                run(own, options["host"], options["port"])
        except (CannotRun, NodeError, BrokerError) as error:
            raise CommandError(str(error)) from error


def run(own: BrokerUrls | None, host: str, port: int) -> None:
    """Start everything in order, watch it, and stop it again, whatever happens."""
    node = None if own else PrivateNode(settings.VAR / "broker", "delayboard")
    manage = Path(settings.BASE_DIR) / "manage.py"
    # Without -P a package of the current folder could be taken for ours.
    command = [str(manage)] if settings.IS_CHECKOUT else ["-P", "-m", "delayboard"]
    has_demo = node is not None
    wanted = children([sys.executable, *command], port, host=host, with_traffic=has_demo)
    try:
        if node is not None:
            print_line("Starting the broker")
            node.start()
        keep_running(node, wanted, port, prepare(own, node))
    except KeyboardInterrupt:
        print_line("\nStopped")
    finally:
        if node is not None:
            node.stop()


def prepare(own: BrokerUrls | None, node: PrivateNode | None) -> str:
    """Bring the database up to date, make the first account, register the broker.

    Returns the path of the page to begin with.
    """
    call_command("migrate", interactive=False, verbosity=0)
    make_first_account()
    if node is not None:
        # The private node keeps its data but may come back on other ports.
        register(DEMO_BROKER, parse_address(node.amqp_url, node.management_url))
    elif own is not None:
        address = parse_address(own.amqp, own.management)
        broker = register(f"{address.host} {address.vhost}", address)
        for trial in try_connection(broker.address):
            print_line(f"{trial.name}: {trial.sentence}")
        return reverse("broker_start", args=[broker.slug])
    return reverse("now")


def make_first_account() -> None:
    """Create `admin` with a random password, shown this once, unless an administrator exists."""
    users = get_user_model().objects
    if users.filter(is_superuser=True).exists():
        return
    password = secrets.token_urlsafe(12)
    users.create_superuser(username="admin", password=password)
    print_line(
        f"\n    Sign in as  admin\n    password    {password}\n\n    (shown only this once)\n"
    )


def register(name: str, address: Address) -> Broker:
    """Make the row of a broker, or bring its address up to date; nothing is changed on it."""
    broker = Broker.objects.filter(name=name).first()
    is_new = broker is None
    broker = broker or Broker(name=name, environment="demo" if name == DEMO_BROKER else "own")
    broker.vhost, broker.username, broker.tls = address.vhost, address.username, address.tls
    broker.amqp_addresses = ", ".join(one.amqp_name for one in address.amqp_nodes)
    broker.management_urls = ", ".join(one.management_url for one in address.management_nodes)
    broker.silent = {}
    if is_new:
        return add_broker(broker, address.password)
    broker.set_password(address.password)
    broker.save()
    return broker
