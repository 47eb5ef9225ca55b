"""How commands with --server end by the answers of the site, and of a proxy before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from delayboard.management.commands import publish, replay_dead_letters
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


LINES = [
    {"id": number, "broker": broker, "message_id": f"m{number}", "correlation_id": ""}
    for number, broker in ((1, "shop"), (2, "there"))
]
REQUESTED = say(200, verdicts=[{"problem": ""}], sentences=["It is cancelled."], is_risky=False)


@pytest.mark.parametrize(
    ("made", "code", "total"),
    [
        ([REQUESTED, say(503, detail="No broker.")], 3, "1 of 2 changes requested.\n"),
        ([REQUESTED, BROKEN], 4, "1 of 2 changes requested.\n"),
        ([say(503, detail="No broker.")], 2, ""),
        ([BROKEN], 4, ""),
    ],
)
def test_changes_of_which_some_are_requested_are_partly_done(
    tmp_path: Path, made: list[Answer], code: int, total: str
) -> None:
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in LINES)
    answers: dict[str, list[Answer]] = {
        "GET scheduled/export": [(200, lines, {})],
        "GET brokers/there": [say(200, **SHOP)],
        "POST scheduled/changes": [REQUESTED, REQUESTED, *made],
    }
    ended, _ = call(tmp_path, answers, "scheduled", "cancel", "--all")
    assert (ended.code, ended.out.endswith(total)) == (code, True), ended
    assert ended.err.startswith("Nothing was changed.") is (code == 2)


def test_changes_of_which_some_are_undone_are_partly_done(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "broker": "shop",
        "change": "cancel",
        "message": "m",
        "destination": "orders",
    }
    items = [common | {"id": number, "due_at": "2026-11-20"} for number in (1, 2)]
    answers = {
        "GET scheduled/changes": [say(200, items=items, next=None)],
        "POST scheduled/changes/1/undo": [say(200)],
        "POST scheduled/changes/2/undo": [say(403, detail="No.")],
    }
    ended, _ = call(tmp_path, answers, "scheduled", "undo", "--all")
    assert (ended.code, ended.out.splitlines()[-1]) == (3, "1 of 2 changes undone."), ended


DRAFT = {"replay": 5, "broker": "shop", "state": "draft", "pending": 2, "is_resting": True}
COUNTS = {"selected": 2, "excluded": 0, "done": 0, "unknown": 0}
WAITING = DRAFT | COUNTS | {"state": "waiting", "is_resting": False, "worker_is_missing": True}


def resume(tmp_path: Path, *seen: Mapping[str, Any]) -> tuple[Ended, list[Asked]]:
    answers = {
        "GET replays/5": [say(200, **one) for one in seen],
        "GET replays/5/dry-run": [say(200, good=2, endings=[{"messages": 2}])],
        "POST replays/5/start": [say(202)],
    }
    return call(tmp_path, answers, "replay_dead_letters", "shop", "--resume", "5", "--json")


def test_who_needs_an_approval_learns_that_it_is_requested(tmp_path: Path) -> None:
    ended, _ = resume(tmp_path, DRAFT | {"approval_request": ""}, DRAFT)
    assert (ended.code, "approval of a second person is requested" in ended.err) == (1, True)


def test_a_replay_that_no_worker_carries_out_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_dead_letters, "PATIENCE_SECONDS", -1)
    ended, asked = resume(tmp_path, DRAFT | {"approval_request": "then"}, WAITING)
    (start,) = (json.loads(one.body) for one in asked if one.what == "POST replays/5/start")
    assert start["approves"] == "then"
    assert (ended.code, "no worker runs" in ended.err) == (4, True), ended
