"""What `--server` makes of answers: refused, unknown, or to be sent again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest
from django.core.management.base import CommandError

from tests.answering import Answer, answering
from topology.management import server
from topology.management.exit_codes import ExitCode
from topology.management.server import Refused, Server

UNKNOWN, NOT_RUN = ExitCode.UNKNOWN, ExitCode.NOT_RUN


def problem(status: int, **more: Any) -> Answer:
    body = {"detail": "No.", "status": status} | more
    return status, json.dumps(body).encode(), {"Content-Type": "application/problem+json"}


LOST: Answer = (0, b"", {})
DONE: Answer = (200, b'{"a": 1}', {})
OF_PROXY: Answer = (503, b"<html>No backend.", {"Content-Type": "text/html"})
TIMED_OUT: Answer = (504, b'{"message": "timed out"}', {"Content-Type": "application/json"})
TOO_MANY: Answer = (429, b"{}", {"Retry-After": "0"})


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        ([LOST], DONE, None),
        ([TOO_MANY, TOO_MANY], DONE, None),
        ([], TOO_MANY, NOT_RUN),
        ([], LOST, UNKNOWN),
        ([], problem(500, is_unknown=True), UNKNOWN),
        ([], problem(503, is_unknown=True), UNKNOWN),
        ([], problem(503), NOT_RUN),
        ([], OF_PROXY, UNKNOWN),
        ([], TIMED_OUT, UNKNOWN),
        # What is said before the API looks at the key is nothing about the first request.
        ([LOST], problem(503), UNKNOWN),
        ([LOST], problem(401), UNKNOWN),
        ([LOST], problem(403), UNKNOWN),
        ([LOST], TOO_MANY, UNKNOWN),
        ([LOST, problem(503)], DONE, None),
        ([LOST], problem(409), ExitCode.NO),
        ([LOST], problem(422), NOT_RUN),
    ],
)
def test_a_change(
    monkeypatch: pytest.MonkeyPatch, first: Sequence[Answer], then: Answer, code: ExitCode | None
) -> None:
    monkeypatch.setattr(server, "PAUSES", (0, 0, 0))
    with answering({"POST x": [*first, then]}) as (address, asked):
        board = Server(address, "token")
        if code is None:
            assert board.post("x") == {"a": 1}
        else:
            with pytest.raises(CommandError) as ended:
                board.post("x")
            assert ended.value.returncode == code
            assert isinstance(ended.value, Refused) is (code != UNKNOWN)
            assert ("not known" in str(ended.value)) is (code == UNKNOWN)
    assert len({one.headers["Idempotency-Key"] for one in asked}) == 1


@pytest.mark.parametrize("values", [None, {"dry_run": "true"}])
def test_what_changes_nothing_is_not_unknown(values: dict[str, str] | None) -> None:
    how = "POST" if values else "GET"
    with answering({f"{how} x": [OF_PROXY]}) as (address, _), pytest.raises(Refused) as ended:
        Server(address, "token").call(how, "x", values)
    assert ended.value.returncode == NOT_RUN


def test_what_goes_on_there_is_not_known_when_nobody_answers() -> None:
    with (
        answering({"GET x": [OF_PROXY]}) as (address, _),
        pytest.raises(CommandError, match="It is not known how it ends") as ended,
    ):
        Server(address, "token").watch("x", "how it ends", bool, Event(), patience=-1)
    assert ended.value.returncode == UNKNOWN
