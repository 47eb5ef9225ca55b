"""Tries every address of a broker, at little cost to RabbitMQ."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial

from topology.broker import health
from topology.broker.address import Address, SignIn
from topology.broker.amqp.connection import translate_errors
from topology.broker.errors import BrokerError, Unreachable
from topology.broker.management.client import Management
from topology.broker.time_limit import run_in_background
from topology.broker.tokens import get_token

PROBE_SECONDS = 2.0


@dataclass(frozen=True)
class _View:
    """How many nodes of its cluster a node has, and how many of them it sees running."""

    nodes: int = 0
    running: int = 0

    @property
    def is_minority(self) -> bool:
        return self.running * 2 < self.nodes


def probe_nodes(address: Address) -> Mapping[str, str]:
    """The addresses that do not answer, or whose node lost the majority, and why.

    AMQP is only connected to, because RabbitMQ logs each handshake that does not end. An answer
    that refuses the account is an answer. Takes PROBE_SECONDS, and the time for a token. Raises
    BrokerError without one.
    """
    if address.sign_in is SignIn.TOKEN:
        # Here, because a failure of it is none of an address.
        get_token(address)
    amqp = {one.amqp_name: partial(_probe_amqp, one) for one in address.amqp_nodes}
    api = {one.management_url: partial(_probe_management, one) for one in address.management_nodes}
    probes: dict[str, Callable[[], _View]] = {**amqp, **api}
    begun = {name: run_in_background(probe, f"probe of {name}") for name, probe in probes.items()}
    wait(begun.values(), PROBE_SECONDS + 0.5)
    views: dict[str, _View] = {}
    silent: dict[str, str] = {}
    for name, future in begun.items():
        error = future.exception() if future.done() else Unreachable("The address is silent.")
        if isinstance(error, Unreachable):
            health.record_failure(name, error)
            silent[name] = health.shorten_reason(name, str(error))
        elif error is None:
            views[name] = future.result()
    if any(view.running * 2 > view.nodes for view in views.values()):
        for node in address.management_nodes:
            view = views.get(node.management_url, _View())
            if view.is_minority:
                # Where each node has both addresses, in the same order, they are of one node.
                own = [] if node.others else [node.amqp_name]
                silent |= _cut_off([*own, node.management_url], view)
    return silent


def _cut_off(names: list[str], view: _View) -> dict[str, str]:
    why = f"Its node sees only {view.running} of {view.nodes} nodes of the cluster"
    for name in names:
        health.record_failure(name, Unreachable(f"{why}."), is_cut_off=True)
    return dict.fromkeys(names, why)


def _probe_amqp(node: Address) -> _View:
    with translate_errors(node):
        socket.create_connection((node.host, node.port), PROBE_SECONDS).close()
    return _View()


def _probe_management(node: Address) -> _View:
    """Ask an address which nodes run; without the tag “monitoring” RabbitMQ does not say it."""
    try:
        with Management(node, seconds=PROBE_SECONDS) as management:
            states = management.nodes()
    except Unreachable:
        raise
    except BrokerError:
        return _View()
    running = [one.get("name") for one in states if one.get("running") is True]
    return _View(len(states), len(running))
