"""A node as nobody wishes it: feature flags off, TLS by an authority that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from topology.broker.address import Address, parse_address


@dataclass(frozen=True)
class OddNode:
    """`plain` works; `secure` leads to the TLS ports, whose `certificate` (PEM) is its own."""

    plain: Address
    secure: Address
    certificate: str


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
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(private)
    text = certificate.public_bytes(Encoding.PEM).decode()
    (folder / "certificate.pem").write_text(text)
    return text
