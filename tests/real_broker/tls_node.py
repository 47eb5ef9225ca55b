"""A node that knows clients by a certificate or an OAuth 2 token, and who issues the tokens."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from delayboard.demo import node as nodes
from delayboard.demo.node import PrivateNode
from tests.brokers import call_api, root_of
from tests.faults.odd_node import Authority, free_ports
from tests.rooted import make_node
from topology.broker.address import Address, SignIn, parse_address

SERVER_NAME = "rabbit.test"
CLIENT = "delayboard-client"
# The client credentials that the issuer accepts; both need quoting in a form.
CLIENT_ID, CLIENT_SECRET = "board:1", "s3cret/+ü"
SCOPE = " ".join(f"rabbitmq.{right}:*/*" for right in ("configure", "write", "read"))
PLUGINS = ("rabbitmq_auth_mechanism_ssl", "rabbitmq_auth_backend_oauth2")


class TokenIssuer(ThreadingHTTPServer):
    """A token endpoint (RFC 6749, section 4.4); `seconds` is the lifetime of the next token.

    While `is_refusing` it issues none.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Endpoint)
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.seconds = 60
        self.issued = 0
        self.is_refusing = False
        self.asked: list[dict[str, list[str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"

    @property
    def public_key(self) -> str:
        public = self.key.public_key()
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def issue(self, scope: str) -> str:
        self.issued += 1
        claims = {
            "sub": CLIENT_ID,
            "client_id": CLIENT_ID,
            "aud": "rabbitmq",
            "scope": f"{scope} rabbitmq.tag:administrator",
            "exp": int(time.time()) + self.seconds,
            "jti": str(self.issued),
        }
        return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "tests"})


class _Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        issuer = self.server
        assert isinstance(issuer, TokenIssuer)
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        issuer.asked.append(form)
        account = b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        # "board:1" and "s3cret/+ü" as a form quotes them.
        is_known = account == "board%3A1:s3cret%2F%2B%C3%BC"
        if issuer.is_refusing or not is_known:
            self._answer(401, {"error": "invalid_client"})
        else:
            token = issuer.issue(form.get("scope", [""])[0])
            self._answer(200, {"access_token": token, "expires_in": issuer.seconds})

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class TlsNode:
    """`secure` is the address of its TLS ports, whose certificate is for SERVER_NAME alone.

    They require a client certificate of `authority`.
    """

    node: PrivateNode
    secure: Address
    authority: Authority
    issuer: TokenIssuer
    plain: Address = field(init=False)

    def __post_init__(self) -> None:
        plain = parse_address(self.node.amqp_url, self.node.management_url)
        object.__setattr__(self, "plain", plain)

    def with_certificate(self, name: str = CLIENT) -> Address:
        pem = self.authority.certify(name, timedelta(days=1))
        return replace(self.secure, client_certificate=pem, client_key=self.authority.key)

    def with_token(self) -> Address:
        return replace(
            self.plain,
            sign_in=SignIn.TOKEN,
            username=CLIENT_ID,
            password=CLIENT_SECRET,
            token_url=self.issuer.url,
            token_scope=SCOPE,
        )


@contextmanager
def tls_node(folder: Path, generation: str) -> Iterator[TlsNode]:
    """Run it for the length of a block."""
    place = folder / "node"
    place.mkdir()
    authority = Authority("authority", x509.DNSName("authority"))
    authority.write_key(place / "key.pem")
    (place / "ca.pem").write_text(authority.pem)
    (place / "server.pem").write_text(authority.certify(SERVER_NAME, timedelta(days=1)))
    issuer = TokenIssuer()
    (place / "signing.pem").write_text(issuer.public_key)
    thread = Thread(target=issuer.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    root = root_of(generation)
    amqp, management = free_ports(2)
    settings = _settings(amqp, management, Path("/srv") if root else place)
    node = make_node(place, "tls", root=root)
    plain = nodes.configuration
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "configuration", lambda *given: plain(*given) + settings)
        patch.setattr(nodes, "_PLUGINS", (*nodes._PLUGINS, *PLUGINS))
        node.start()
    try:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        call_api(node, "PUT", f"users/{CLIENT}", {"password": "unused", "tags": ""})
        call_api(node, "PUT", f"permissions/%2F/{CLIENT}", everything)
        secure = replace(
            parse_address(node.amqp_url, node.management_url),
            port=amqp,
            tls=True,
            management_url=f"https://127.0.0.1:{management}",
            ca_certificate=authority.pem,
            server_name=SERVER_NAME,
        )
        yield TlsNode(node, secure, authority, issuer)
    finally:
        node.kill()
        issuer.shutdown()
        issuer.server_close()
        thread.join(60)


def _settings(amqp: int, management: int, folder: Path) -> str:
    options = {
        "cacertfile": folder / "ca.pem",
        "certfile": folder / "server.pem",
        "keyfile": folder / "key.pem",
        "verify": "verify_peer",
        "fail_if_no_peer_cert": "true",
    }
    settings = {
        "listeners.ssl.1": f"127.0.0.1:{amqp}",
        "management.ssl.ip": "127.0.0.1",
        "management.ssl.port": management,
        **{f"ssl_options.{name}": value for name, value in options.items()},
        **{f"management.ssl.{name}": value for name, value in options.items()},
        "ssl_cert_login_from": "common_name",
        "auth_mechanisms.1": "PLAIN",
        "auth_mechanisms.2": "EXTERNAL",
        "auth_backends.1": "internal",
        "auth_backends.2": "rabbit_auth_backend_oauth2",
        "auth_oauth2.resource_server_id": "rabbitmq",
        "auth_oauth2.default_key": "tests",
        "auth_oauth2.signing_keys.tests": folder / "signing.pem",
        "auth_oauth2.algorithms.1": "RS256",
    }
    return "".join(f"{key} = {value}\n" for key, value in settings.items())
