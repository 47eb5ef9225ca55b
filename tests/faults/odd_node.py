"""Nodes as nobody wishes them: feature flags off, TLS that refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from random import sample
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from delayboard.demo import node as nodes
from delayboard.demo.node import PrivateNode
from delayboard.demo.ports import is_free
from tests.brokers import NEWEST, root_of
from tests.rooted import make_node
from topology.broker.address import Address, parse_address


@dataclass(frozen=True)
class OddNode:
    """`plain` works; `secure` leads to the TLS ports, whose `certificate` (PEM) is its own.

    At `metrics_url` another plugin than the management API answers.
    """

    plain: Address
    secure: Address
    certificate: str
    metrics_url: str = ""


@contextmanager
def odd_node(folder: Path) -> Iterator[OddNode]:
    """Run it for the length of a block. On RabbitMQ 3.10 all queue types but classic are off."""
    certificate = self_signed(folder)
    amqp, management = free_ports(2)
    with pytest.MonkeyPatch.context() as patch:
        plain_settings, variables = nodes.configuration, nodes.environment
        tls = tls_settings(folder, amqp, management)
        patch.setattr(nodes, "configuration", lambda *given: plain_settings(*given) + tls)
        patch.setattr(nodes, "environment", lambda *given: without_flags(variables(*given)))
        node = PrivateNode(folder / "node", "odd")
        node.start()
    try:
        plain = parse_address(node.amqp_url, node.management_url)
        secure = parse_address(
            f"amqps://{node.username}:{node.password}@127.0.0.1:{amqp}/%2F",
            f"https://127.0.0.1:{management}",
        )
        yield OddNode(plain, secure, certificate)
    finally:
        node.kill()


def without_flags(variables: dict[str, str]) -> dict[str, str]:
    return {**variables, "RABBITMQ_FEATURE_FLAGS": ""}


def tls_settings(folder: Path, amqp: int, management: int) -> str:
    files = {"certfile": folder / "certificate.pem", "keyfile": folder / "key.pem"}
    settings: dict[str, Any] = {
        "listeners.ssl.1": f"127.0.0.1:{amqp}",
        "management.ssl.ip": "127.0.0.1",
        "management.ssl.port": management,
    }
    for name, file in files.items():
        settings |= {f"ssl_options.{name}": file, f"management.ssl.{name}": file}
    return "".join(f"{key} = {value}\n" for key, value in settings.items())


def free_ports(count: int) -> list[int]:
    return [port for port in sample(range(15000, 19999), 200) if is_free(port)][:count]


def self_signed(folder: Path) -> str:
    """Write a certificate of 127.0.0.1 and its key, and return the certificate."""
    authority = Authority("odd", x509.IPAddress(ip_address("127.0.0.1")))
    authority.write_key(folder / "key.pem")
    (folder / "certificate.pem").write_text(authority.pem)
    return authority.pem


class Authority:
    """One that signs certificates, its own first, with the one key that they all have."""

    def __init__(self, name: str, host: x509.GeneralName) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.pem = self._sign(self._name, host, timedelta(days=1), is_authority=True)

    def certify(self, host: str, left: timedelta) -> str:
        """A certificate (PEM) of this host that expires after `left`."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        return self._sign(subject, x509.DNSName(host), left)

    @property
    def key(self) -> str:
        """The key of all its certificates (PEM)."""
        format_ = PrivateFormat.PKCS8
        return self._key.private_bytes(Encoding.PEM, format_, NoEncryption()).decode()

    def write_key(self, file: Path) -> None:
        file.write_text(self.key)

    def _sign(
        self,
        subject: x509.Name,
        host: x509.GeneralName,
        left: timedelta,
        is_authority: bool = False,
    ) -> str:
        now, key = datetime.now(UTC), self._key
        serial = x509.random_serial_number()
        certificate = (
            x509.CertificateBuilder(self._name, subject, key.public_key(), serial)
            .not_valid_before(now - timedelta(days=10))
            .not_valid_after(now + left)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([host]), critical=False)
            .sign(key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM).decode()


# Erlang's options of both TLS ports. To whoever names the host localhost the certificate is old.
STRICT = """
    {cacertfile, "/srv/ca.pem"}, {certfile, "/srv/other.pem"}, {keyfile, "/srv/key.pem"},
    {verify, verify_peer}, {fail_if_no_peer_cert, true},
    {sni_hosts, [{"localhost", [{certfile, "/srv/old.pem"}, {keyfile, "/srv/key.pem"}]}]}
"""


@contextmanager
def strict_node(folder: Path) -> Iterator[OddNode]:
    """Run the newest RabbitMQ, whose TLS ports require a client certificate.

    `certificate` is that of its authority.
    """
    place = folder / "node"
    place.mkdir()
    authority = Authority("authority", x509.DNSName("authority"))
    authority.write_key(place / "key.pem")
    (place / "ca.pem").write_text(authority.pem)
    (place / "other.pem").write_text(authority.certify("other.test", timedelta(days=1)))
    (place / "old.pem").write_text(authority.certify("localhost", -timedelta(days=1)))
    amqp, management = free_ports(2)
    settings = f"""[
        {{rabbit, [{{ssl_listeners, [{{"127.0.0.1", {amqp}}}]}}, {{ssl_options, [{STRICT}]}}]}},
        {{rabbitmq_management,
            [{{ssl_config, [{{ip, "127.0.0.1"}}, {{port, {management}}}, {STRICT}]}}]}}
    ]."""
    node = make_node(place, "strict", root=root_of(NEWEST))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "advanced_configuration", lambda folder: settings)
        node.start()
    try:
        plain = parse_address(node.amqp_url, node.management_url)
        secure = replace(
            plain, port=amqp, tls=True, management_url=f"https://127.0.0.1:{management}"
        )
        metrics = json.loads((place / "node.json").read_text())["prometheus"]
        yield OddNode(plain, secure, authority.pem, f"http://127.0.0.1:{metrics}")
    finally:
        node.kill()
