"""How a job's Spark is set up, ends, and says what failed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from analytics.jobs import command, session


def thrown(*sentences: str) -> Any:
    """A Java exception that says the first, caused by one that says the next, and so on."""
    if not sentences:
        return None
    return SimpleNamespace(
        _target_id="o1",
        toString=lambda: sentences[0],
        getCause=lambda: thrown(*sentences[1:]),
    )


@pytest.mark.parametrize(
    ("sentences", "line"),
    [
        (["java.io.IOException: no room"], "java.io.IOException: no room"),
        (["A: failed", "B: went on", "C: no room"], "A: failed. Cause: C: no room"),
        (["A: failed because of C: no room", "C: no room"], "A: failed because of C: no room"),
    ],
)
def test_an_error_of_java_is_told_with_its_first_cause(sentences: list[str], line: str) -> None:
    assert command.describe(Py4JJavaError("call", thrown(*sentences))) == line


def test_a_ring_of_causes_ends() -> None:
    ring = thrown("A: failed")
    ring.getCause = lambda: ring
    assert command.describe(Py4JJavaError("call", ring)) == "A: failed"


@pytest.mark.parametrize("flag", [0, os.ST_NOEXEC])
def test_the_jvm_loads_no_library_from_a_folder_without_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flag))
    settings = session._local_settings(tmp_path, 0)
    is_there = f"java.io.tmpdir={tmp_path}" in settings[session.JAVA_OPTIONS]
    # Only a JVM all of whose files lie in the job's folder is killed.
    assert (is_there, session.KILLABLE in settings) == ((False, False) if flag else (True, True))


def test_a_jvm_that_is_not_ours_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under spark-submit the JVM runs Python, and Python has no process of it."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(session, "_gateway", lambda: SimpleNamespace(proc=None))
    done: list[str] = []
    context = SimpleNamespace(_jsc=SimpleNamespace(stop=lambda: done.append("stopped")))
    settings = SimpleNamespace(get=lambda name, default: default)
    spark = SimpleNamespace(sparkContext=context, conf=settings)
    session.stop_context(cast(SparkSession, spark))
    assert done == ["stopped"]
    assert session._end_of_jvm(Py4JNetworkError("no answer")) == ""


def test_an_error_that_a_killed_jvm_cannot_tell_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_answer() -> str:
        raise Py4JNetworkError("no answer")

    error = thrown("A: failed")
    error.toString = no_answer
    ended = {Py4JNetworkError: "Spark's JVM was killed.", Py4JJavaError: ""}
    monkeypatch.setattr(session, "_end_of_jvm", lambda error: ended[type(error)])
    assert session._why(Py4JJavaError("call", error)) == "Spark's JVM was killed."
