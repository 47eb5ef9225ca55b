"""How commands with --server end by the answers of the site, and of a proxy before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from delayboard.management.commands import publish
from tests.answering import Answer, Asked, answering
from tests.commands import Ended, run
from topology.management import server

pytestmark = pytest.mark.django_db
SHOP = {"name": "Shop", "environment": "", "is_production": False}
BROKEN: Answer = (502, b"Bad gateway", {})


def say(status: int, **document: Any) -> Answer:
    kind = "application/json" if status < 400 else "application/problem+json"
    return status, json.dumps(document).encode(), {"Content-Type": kind}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAUSES", (0, 0, 0))
    monkeypatch.setattr(server, "WATCH_SECONDS", 0)
    monkeypatch.setattr(publish, "REPORT_SECONDS", 0)


def call(
    tmp_path: Path, answers: Mapping[str, Sequence[Answer]], *words: str
) -> tuple[Ended, list[Asked]]:
    file = tmp_path / "token"
    file.write_text("token")
    with answering({"GET brokers/shop": [say(200, **SHOP)], **answers}) as (address, asked):
        return run(*words, "--server", address, "--token-file", str(file)), asked


PREDICTED = say(200, broker="shop", state="predicted", sentence="It arrives.")


@pytest.mark.parametrize(
    ("state", "seen", "code"),
    [
        ("confirmed", [BROKEN], 3),
        ("unknown", [BROKEN], 4),
        ("confirmed", [say(401, detail="No.")], 3),
        ("confirmed", [BROKEN, say(200, is_settled=True, mark="arrived", sentence="Yes.")], 0),
    ],
)
def test_a_message_that_nobody_follows_is_still_published(
    tmp_path: Path, state: str, seen: list[Answer], code: int
) -> None:
    answers = {
        "POST publications": [PREDICTED, say(201, id="u", state=state, error="")],
        "GET publications/u": seen,
    }
    wait = "1s" if code == 0 else "1ms"
    ended, _ = call(tmp_path, answers, "publish", "--broker", "shop", "--wait", wait)
    assert (ended.code, "not known whether" in ended.out) == (code, code != 0), ended


JOB = {"id": "u", "number": 2, "published": 2, "returned": 0, "unknown": 0, "repeated": 0}
DONE = say(200, **JOB, state="done")


@pytest.mark.parametrize(
    ("seen", "stopped", "code"),
    [
        ([BROKEN, DONE], None, 0),
        ([DONE], say(409, detail="It has ended."), 0),
        ([DONE], say(403, detail="The role is missing."), 4),
        ([DONE], say(503, detail="The database is locked."), 4),
    ],
)
def test_a_publish_job_is_followed_or_stopped(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seen: list[Answer],
    stopped: Answer | None,
    code: int,
) -> None:
    stop = Event()
    if stopped:
        stop.set()
    monkeypatch.setattr(publish, "until_stopped", lambda: stop)
    answers = {
        "POST publications": [PREDICTED, say(202, **JOB, state="waiting")],
        "GET publish-jobs/u": seen,
        "POST publish-jobs/u/stop": [stopped or DONE],
    }
    words = ("publish", "--broker", "shop", "--count", "2", "--rate", "1")
    ended, asked = call(tmp_path, answers, *words)
    assert (ended.code, "The publish job u goes on." in ended.err) == (code, code == 4), ended
    assert ("POST publish-jobs/u/stop" in [one.what for one in asked]) is bool(stopped)
