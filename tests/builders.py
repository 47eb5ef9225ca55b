"""Rows and addresses for tests, with the least that each needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django import db
from django.contrib.auth.models import User

from delayboard.demo.script import DEMO_BROKER, HOLD
from tests.brokers import Vhost
from topology.broker.address import Address, parse_address
from topology.broker.management.client import Management
from topology.definitions import BrokerObject, Definitions
from topology.models import Broker, Grant, Role, State, Topology
from topology.operations.connect import add_broker
from topology.operations.provision import apply
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.retry_pair.pattern import retry_pair
from topology.structure.taps import DEFAULT_TAP, TapType

Found = TypeVar("Found")


def address_of(vhost: Vhost) -> Address:
    return parse_address(vhost.amqp_url, vhost.management_url)


def declare_in(vhost: Vhost, *objects: BrokerObject) -> None:
    with Management(address_of(vhost)) as management:
        management.declare(Definitions.of(objects))


def make_broker(vhost: Vhost | None = None, *, name: str = "Test broker") -> Broker:
    """A broker's row: of a real vhost, or of an address where nothing listens."""
    amqp, management = (
        (vhost.amqp_url, vhost.management_url)
        if vhost
        else ("amqp://guest:guest@127.0.0.1:9/nowhere", "http://127.0.0.1:9")
    )
    address = parse_address(amqp, management)
    broker = Broker(
        name=name,
        environment="test",
        amqp_addresses=address.amqp_name,
        vhost=address.vhost,
        username=address.username,
        management_urls=address.management_url,
    )
    return add_broker(broker, address.password)


def make_user(name: str, role: Role | None = None, broker: Broker | None = None) -> User:
    """An account with a role on one broker, or on all when `broker` is None."""
    user = User.objects.create_user(name, password="a long enough password")
    if role is not None:
        Grant.objects.create(user=user, role=role, broker=broker)
    return user


def refuse_full_disk(*args: object, **kwargs: object) -> None:
    """In place of a method that writes: raises what Django raises when SQLite's disk is full."""
    cause = OSError()
    cause.sqlite_errorname = "SQLITE_FULL"  # type: ignore[attr-defined]
    raise db.OperationalError("database or disk is full") from cause


def make_demo() -> Broker:
    """The demo's broker with one of its topologies."""
    broker = make_broker(name=DEMO_BROKER)
    broker.environment = "demo"
    broker.save()
    topology = create_topology(None, broker, HOLD.kind, HOLD.params)
    Topology.objects.filter(pk=topology.pk).update(state=State.APPLIED)
    return broker


def make_pair(
    broker: Broker, *, name: str = "orders", delay: str = "500ms", tap_type: TapType = DEFAULT_TAP
) -> Topology:
    """A retry pair that is planned, not applied."""
    params = retry_pair.parse({"name": name, "delay": delay})
    return make_tapped(broker, retry_pair.KIND, params, tap_type)


def make_tapped(broker: Broker, kind: str, params: Any, tap_type: TapType = "classic") -> Topology:
    """A planned topology whose tap will have this type, whatever would be chosen."""
    row = create_topology(None, broker, kind, params)
    row.tap_type = tap_type
    row.save(update_fields=["tap_type"])
    return row


def applied_pair(
    vhost: Vhost, *, name: str = "orders", delay: str = "500ms", tap_type: TapType = DEFAULT_TAP
) -> Topology:
    """A retry pair that exists on the vhost, taps included."""
    pair = make_pair(make_broker(vhost), name=name, delay=delay, tap_type=tap_type)
    return applied_topology(pair)


def applied_levels(vhost: Vhost, params: delay_levels_params.Params) -> Topology:
    """Delay levels that exist on the vhost, taps included."""
    name = f"Broker of {delay_levels.title(params)}"
    broker = make_broker(vhost, name=name)
    return applied_topology(create_topology(None, broker, delay_levels.KIND, params))


def applied_topology(topology: Topology) -> Topology:
    """The topology, once it exists on its vhost, taps included."""
    apply(None, topology)
    topology.refresh_from_db()
    return topology


def eventually(look: Callable[[], Found | None], what: str, *, seconds: float = 60.0) -> Found:
    """Look again and again until there is something; fails with `what` when there never is.

    The longer it takes the seldomer it looks, since a look may cost a broker some work.
    """
    began = time.monotonic()
    while True:
        found = look()
        if found:
            return found
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(min(0.3, 0.05 + waited / 10))


@contextmanager
def running(part: Callable[[threading.Event], None]) -> Iterator[None]:
    """The part in a thread, for the length of the block; fails when it does not end then."""
    stop = threading.Event()
    thread = threading.Thread(target=part, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
