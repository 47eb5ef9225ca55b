"""Real servers that take what Delayboard sends: mail by SMTP, webhooks by HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from aiosmtpd.controller import Controller


class Mailbox:
    """Takes mails, or refuses them with the answer that is set; answers when it may."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refusal = ""
        self.has_mail = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    # The name that aiosmtpd calls.
    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.refusal:
            return self.refusal
        mail = message_from_bytes(envelope.content, policy=default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.has_mail.set()
        await asyncio.to_thread(self.may_answer.wait, 10)
        return "250 OK"


class Server(Controller):
    """A real SMTP server at a free port, which aiosmtpd itself does not note."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def smtp_server(settings: Any) -> Iterator[Mailbox]:
    """What the SMTP server of the settings takes."""
    box = Mailbox()
    server = Server(box, hostname="127.0.0.1", port=0)
    server.start()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST = "127.0.0.1"
    settings.EMAIL_PORT = server.port
    yield box
    server.stop()


@dataclass
class Hook:
    """What was posted, and where."""

    address: str
    posts: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def webhook(*answers: int) -> Iterator[Hook]:
    """An HTTP server that answers with these statuses in turn, then with the last one; 0 ends the
    connection without an answer."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            hook.posts.append(json.loads(hook.bodies[-1]))
            hook.headers.append({name.lower(): text for name, text in self.headers.items()})
            hook.paths.append(self.path)
            status = left.pop(0) if len(left) > 1 else left[0]
            if not status:
                return
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            hook.paths.append(self.path)
            self.send_response(left[0])
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Stay silent."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        hook = Hook(f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()
