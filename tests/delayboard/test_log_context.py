"""Lines of the log of a request, socket, command or task have its id, its actor and its broker."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import HttpCommunicator, WebsocketCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from structlog.contextvars import get_contextvars

from delayboard import log_context
from delayboard.asgi import application
from delayboard.log_format import make_json_formatter
from delayboard.run_command import run_command
from delayboard.worker.supervise import keep_one_running
from delayboard.worker.tasks import Task
from tests.builders import make_broker, make_user
from topology import work
from topology.models import Broker, Role

HEADERS = [(b"host", b"localhost"), (b"origin", b"http://localhost")]


class Lines(logging.Handler):
    """What a handler with the JSON formatter writes."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(make_json_formatter())
        self.read: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.read.append(json.loads(self.format(record)))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def cookie(user: User) -> tuple[bytes, bytes]:
    client = Client()
    client.force_login(user)
    value = client.cookies[settings.SESSION_COOKIE_NAME].value
    return b"cookie", f"{settings.SESSION_COOKIE_NAME}={value}".encode()


async def ask(path: str, headers: list[tuple[bytes, bytes]]) -> Any:
    request = HttpCommunicator(application, "GET", path, headers=headers)
    answer = await request.get_response(timeout=20)
    await request.wait(timeout=20)
    return answer


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([b"4bf92f35-77b3.4da6:a3"], "4bf92f35-77b3.4da6:a3"),
        ([b"a" * 128], "a" * 128),
        ([b"a" * 129], ""),
        ([b""], ""),
        ([b"a b"], ""),
        ([b"a\n"], ""),
        ([b"\xc3\xa9"], ""),
        ([b'a"}'], ""),
        ([b"a", b"b"], ""),
        ([], ""),
    ],
)
def test_a_request_id_is_taken_only_as_a_plain_id(given: list[bytes], read: str) -> None:
    headers = [(b"host", b"x"), *((b"x-request-id", one) for one in given)]
    assert log_context.read_request_id(headers) == read


@pytest.mark.django_db(transaction=True)
async def test_a_request_answers_with_its_id_and_logs_who_asked_about_what(lines: Lines) -> None:
    user = await sync_to_async(make_user)("ada", Role.ADMIN)
    broker = await sync_to_async(make_broker)()
    headers = [*HEADERS, await sync_to_async(cookie)(user), (b"x-request-id", b"from-the-proxy")]
    path = reverse("parked_message", args=[broker.slug, 999_999])
    answer = await ask(path, headers)
    assert answer["status"] == 404
    assert [value for name, value in answer["headers"] if name == b"x-request-id"] == [
        b"from-the-proxy"
    ]
    (line,) = lines.read
    assert line["event"] == f"Not Found: {path}"
    assert (line["request_id"], line["actor_id"]) == ("from-the-proxy", user.pk)
    assert line["broker_id"] == broker.pk
    # The next one has nothing of it.
    answer = await ask("/livez", HEADERS)
    ((_, made),) = [one for one in answer["headers"] if one[0] == b"x-request-id"]
    assert made.isalnum()


@pytest.mark.django_db(transaction=True)
async def test_what_the_view_bound_is_in_the_line_of_the_answer() -> None:
    """uvicorn logs an access while the answer is sent."""
    user = await sync_to_async(make_user)("ada", Role.ADMIN)
    bound: dict[str, Any] = {}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            bound.update(get_contextvars())

    communicator = HttpCommunicator(
        application, "GET", "/", headers=[*HEADERS, await sync_to_async(cookie)(user)]
    )
    body = iter([{"type": "http.request", "body": b""}])

    async def receive() -> dict[str, Any]:
        if (message := next(body, None)) is not None:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    await application(communicator.scope, receive, send)
    assert bound["actor_id"] == user.pk


@pytest.mark.django_db(transaction=True)
async def test_a_socket_has_an_id(monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    def fail(*_: object) -> None:
        logging.getLogger("delayboard").warning("It fails.")

    user = await sync_to_async(make_user)("ada", Role.ADMIN)
    monkeypatch.setattr("delayboard.live.subjects.find", fail)
    headers = [*HEADERS, await sync_to_async(cookie)(user), (b"x-request-id", b"s-1")]
    socket = WebsocketCommunicator(application, "/ws/brokers/x/", headers=headers)
    await socket.connect()
    assert (await socket.receive_output())["type"] == "websocket.close"
    (line,) = lines.read
    assert (line["request_id"], line["actor_id"]) == ("s-1", user.pk)
    await socket.disconnect()


def test_a_task_and_its_work_have_ids(transactional_db: None, lines: Lines) -> None:
    broker: Broker = make_broker()
    user = make_user("ada", Role.ADMIN)
    row = work.create("test", 1, broker=broker, user=user)
    stop = Event()

    def do(*_: object, **__: object) -> None:
        logging.getLogger("topology").warning("It works.")

    def run(**_: object) -> None:
        claimed = work.claim_this(row, "me")
        assert claimed is not None
        work.attempt(do, claimed, stop=stop)
        stop.set()
        raise ValueError("odd")

    keep_one_running(Task("replay", "Replayer", run), stop)
    during, after = lines.read
    assert during["event"] == "It works."
    assert (during["task"], during["work_id"], during["actor_id"], during["broker_id"]) == (
        *("replay", row.pk),
        *(user.pk, broker.pk),
    )
    assert after["request_id"] == during["request_id"]
    assert (after["task"], "work_id" in after, "actor_id" in after) == ("replay", False, False)


def test_a_command_has_an_id(db: None) -> None:
    assert run_command(["manage.py", "recognize", "--nothing"]) != 0
    assert get_contextvars()["command"] == "recognize"
    assert len(str(get_contextvars()["request_id"])) == 32
