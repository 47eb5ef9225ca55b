"""Adding a broker, trying its connection, and the state of its addresses and certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.utils import timezone

from topology.broker.address import (
    RENEWAL_TIME,
    Address,
    AddressError,
    Certificate,
    read_certificates,
)
from topology.broker.amqp.connection import open_connection
from topology.broker.amqp.pipeline import REQUEST_HEARTBEAT_SECONDS
from topology.broker.errors import BrokerError, alarm_sentence
from topology.broker.management.client import Management
from topology.broker.probe_nodes import probe_nodes
from topology.broker.time_limit import run_in_background
from topology.content.text import count_of
from topology.database.slugs import new_slug
from topology.models import Broker

TRIAL_SECONDS = 3.0


@dataclass(frozen=True)
class Trial:
    """How one protocol answered: a sentence, and whether it is good news.

    A fatal one cannot be used at all; an alarm passes.
    """

    name: str
    works: bool
    sentence: str
    is_fatal: bool = False


Try = Callable[[Address], list[Trial]]


def try_connection(address: Address) -> list[Trial]:
    """Try both protocols; a failure is a Trial, never an exception. Takes 3 seconds at most."""
    tries: dict[str, Try] = {"AMQP": _try_amqp, "Management API": _try_management}
    begun = {
        name: run_in_background(partial(one, address), f"trial of {name}")
        for name, one in tries.items()
    }
    wait(begun.values(), TRIAL_SECONDS)
    found: list[Trial] = []
    for name, future in begun.items():
        found += future.result() if future.done() else [_timeout(name, address)]
    return found


def add_broker(broker: Broker, password: str) -> Broker:
    """Give it a slug and a sealed password, and save it."""
    taken = Broker.objects.filter
    broker.slug = new_slug(broker.name, lambda slug: taken(slug=slug).exists(), longest=60)
    broker.set_password(password)
    broker.save()
    return broker


def _try_amqp(address: Address) -> list[Trial]:
    try:
        with open_connection(address, "connection test", heartbeat=REQUEST_HEARTBEAT_SECONDS):
            return [Trial("AMQP", True, f"Connected to the virtual host “{address.vhost}”.")]
    except BrokerError as error:
        return [Trial("AMQP", False, str(error), is_fatal=True)]


def _try_management(address: Address) -> list[Trial]:
    try:
        with Management(address, in_all=TRIAL_SECONDS) as management:
            overview = management.overview()
            queues = management.count_queues()
            alarms = management.alarms()
    except BrokerError as error:
        return [Trial("Management API", False, str(error), is_fatal=True)]
    # The node is named only to accounts with the tag “monitoring”.
    node = f" on {overview['node']}" if overview.get("node") else ""
    sentence = f"RabbitMQ {overview.get('rabbitmq_version')}{node}, {count_of(queues, 'queue')}."
    works = Trial("Management API", True, sentence)
    return [works, Trial("Publishing", False, alarm_sentence(alarms))] if alarms else [works]


def _timeout(name: str, address: Address) -> Trial:
    sentence = (
        f"{address.host} did not answer in {TRIAL_SECONDS:.0f} seconds. Check the host name, "
        "the network and the load of RabbitMQ."
    )
    return Trial(name, False, sentence, is_fatal=True)


@dataclass(frozen=True)
class AddressState:
    """`why` it does not answer, "" while it does or nobody tried; since when the worker knows."""

    address: str
    why: str
    since_at: datetime | None = None


@dataclass(frozen=True)
class CertificateLine:
    """A certificate of a broker, and how long it is valid."""

    label: str
    subject: str
    expires_at: datetime
    left: timedelta

    @property
    def is_expired(self) -> bool:
        return self.left <= timedelta(0)

    @property
    def is_ending(self) -> bool:
        return self.left < RENEWAL_TIME


def has_several(broker: Broker) -> bool:
    """Whether one address can be lost while another answers."""
    return "," in broker.amqp_addresses or "," in broker.management_urls


def check_addresses(broker: Broker) -> bool:
    """Try each address, store which do not answer; returns whether that changed."""
    try:
        found = dict(probe_nodes(broker.address))
    except BrokerError:
        # The account or the certificate cannot be used: every poll reports it.
        return False
    rows = Broker.objects.filter(
        pk=broker.pk,
        amqp_addresses=broker.amqp_addresses,
        management_urls=broker.management_urls,
    )
    before = {one.address: one.since_at for _, states in list_states(broker) for one in states}
    now = timezone.now()
    silent = {
        address: {"why": why, "since": (before.get(address) or now).isoformat()}
        for address, why in found.items()
    }
    return silent != broker.silent and rows.update(silent=silent) > 0


def list_states(broker: Broker) -> Sequence[tuple[str, Sequence[AddressState]]]:
    """AMQP and the management API, each with its addresses."""
    amqp, api = broker.amqp_addresses.split(", "), broker.management_urls.split(", ")
    return [
        (label, [_state_of(one, broker.silent.get(one)) for one in addresses])
        for label, addresses in (("AMQP", amqp), ("Management", api))
    ]


def _state_of(address: str, stored: Any) -> AddressState:
    """The state of an address as the row has it; a row of an earlier version has a text without a
    time.
    """
    if not isinstance(stored, dict):
        return AddressState(address, str(stored or ""))
    return AddressState(address, stored["why"], datetime.fromisoformat(stored["since"]))


def describe_silent(broker: Broker) -> Iterator[str]:
    """A sentence for each protocol of which some addresses do not answer."""
    for label, states in list_states(broker):
        silent = [one for one in states if one.why]
        if silent and len(states) > 1:
            reasons = "; ".join(f"{one.address}: {one.why}{_since(one)}" for one in silent)
            kind = "AMQP" if label == "AMQP" else "management"
            verb = "does" if len(silent) == 1 else "do"
            number = f"{len(silent)} of {len(states)} {kind} addresses"
            yield f"{number} of {broker.name} {verb} not answer ({reasons})."


def _since(one: AddressState) -> str:
    if one.since_at is None:
        return ""
    return f", since {timezone.localtime(one.since_at):%Y-%m-%d %H:%M}"


def list_certificates(broker: Broker, now: datetime) -> Sequence[CertificateLine]:
    """The client's certificate and the stored authorities, the first to expire first."""
    texts = (
        ("client certificate", broker.client_certificate),
        ("CA certificate", broker.ca_certificate),
    )
    lines = [
        CertificateLine(label, one.subject, one.expires_at, one.expires_at - now)
        for label, pem in texts
        if pem.strip()
        for one in _read(pem)
    ]
    return sorted(lines, key=lambda line: line.expires_at)


def _read(pem: str) -> Iterable[Certificate]:
    try:
        return read_certificates(pem)
    except AddressError:
        # The connection reports it.
        return ()
