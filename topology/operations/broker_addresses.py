"""The addresses and certificates of brokers: which do not answer, and which expire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from topology.broker.address import AddressError
from topology.broker.certificates import RENEWAL_TIME, Certificate, read_certificates
from topology.broker.errors import BrokerError
from topology.broker.probe_nodes import probe_nodes
from topology.models import Broker


@dataclass(frozen=True)
class AddressState:
    """`why` it does not answer, "" while it does or nobody tried."""

    address: str
    why: str


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
        silent = dict(probe_nodes(broker.address))
    except BrokerError:
        # The account or the certificate cannot be used: every poll reports it.
        return False
    rows = Broker.objects.filter(
        pk=broker.pk,
        amqp_addresses=broker.amqp_addresses,
        management_urls=broker.management_urls,
    )
    return silent != broker.silent and rows.update(silent=silent) > 0


def list_states(broker: Broker) -> Sequence[tuple[str, Sequence[AddressState]]]:
    """AMQP and the management API, each with its addresses."""
    amqp, api = broker.amqp_addresses.split(", "), broker.management_urls.split(", ")
    return [
        (label, [AddressState(one, str(broker.silent.get(one, ""))) for one in addresses])
        for label, addresses in (("AMQP", amqp), ("Management", api))
    ]


def describe_silent(broker: Broker) -> Iterator[str]:
    """A sentence for each protocol of which some addresses do not answer."""
    for label, states in list_states(broker):
        silent = [one for one in states if one.why]
        if silent and len(states) > 1:
            reasons = "; ".join(f"{one.address}: {one.why}" for one in silent)
            kind = "AMQP" if label == "AMQP" else "management"
            verb = "does" if len(silent) == 1 else "do"
            number = f"{len(silent)} of {len(states)} {kind} addresses"
            yield f"{number} of {broker.name} {verb} not answer ({reasons})."


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
