"""A database that refuses is one page and one line in the log, on every kind of address."""

from __future__ import annotations

import logging

import pytest
from channels.testing import WebsocketCommunicator
from django.test import Client

from delayboard.asgi import application
from delayboard.live.guard import TRY_AGAIN_LATER
from delayboard.models import SavedView
from tests.builders import make_broker, make_user, refuse_full_disk
from topology import audit
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.both_databases

FULL = "The disk is full. Free space on the disk and try again."


@pytest.fixture
def client(db: None) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(make_user("ada", Role.ADMIN))
    return client


@pytest.fixture
def broker(db: None) -> Broker:
    return make_broker()


def test_an_action_that_is_refused_says_why_and_logs_one_line(
    client: Client,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(SavedView, "save", refuse_full_disk)
    address = "/preferences/views/"
    answer = client.post(address, {"list": "scheduled", "name": "mine"})
    text = answer.content.decode()
    assert (answer.status_code, FULL in text) == (503, True)
    assert "may be partly done" in text
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in lines] == [f"POST {address} by ada failed: {FULL}"]
    assert lines[0].exc_info is None
    plain = client.post(
        address, {"list": "scheduled", "name": "mine"}, headers={"Accept": "text/plain"}
    )
    assert (plain.status_code, plain.content.decode()) == (503, FULL)


def test_a_defect_keeps_its_page_and_its_traceback(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*args: object, **kwargs: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr("delayboard.views.now.render", break_down)
    assert client.get("/").status_code == 500
    assert [bool(record.exc_info) for record in caplog.records] == [True]


def test_an_action_does_not_begin_without_its_audit_entry(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = []
    with monkeypatch.context() as patch:
        patch.setattr(AuditEntry, "save", refuse_full_disk)
        with pytest.raises(Exception, match="disk is full"), audit.recorded(None, "peeked"):
            began.append("peek")
    assert began == []
    with audit.recorded(None, "peeked"):
        assert AuditEntry.objects.get().outcome == "begun"
    assert AuditEntry.objects.get().outcome == "done"


@pytest.mark.django_db(transaction=True)
async def test_a_socket_is_closed_and_the_page_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("channels.auth.get_user", refuse_full_disk)
    headers = [(b"origin", b"http://localhost"), (b"host", b"localhost")]
    socket = WebsocketCommunicator(application, "/ws/brokers/none/", headers=headers)
    accepted, code = await socket.connect()
    assert (accepted, code) == (False, TRY_AGAIN_LATER)
    assert [record.getMessage() for record in caplog.records] == [
        f"WebSocket /ws/brokers/none/ failed: {FULL}"
    ]
