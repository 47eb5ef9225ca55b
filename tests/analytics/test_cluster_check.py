"""A cluster that does not answer is one sentence, at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from threading import Thread

import pytest

from analytics import cluster, launch, nightly
from analytics.jobs import __main__, command
from analytics.models import Run
from tests.postgres import free_port
from tests.stopwatch import stopwatch

DAY = date(2026, 11, 20)
SETTINGS = {"SPARK_MASTER": "spark", "SPARK_REMOTE": "sc"}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """It accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refusal() -> str:
    with pytest.raises(launch.LaunchError) as refused:
        cluster.check()
    return str(refused.value)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_silent_server_fails_a_run_within_fifteen_seconds_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, silent_port: int, event_log: Path, db: None, setting: str
) -> None:
    url = f"{SETTINGS[setting]}://127.0.0.1:{silent_port}"
    monkeypatch.setenv(
        setting, f"{url}/;user_id=a;token_file=b" if setting != "SPARK_MASTER" else url
    )
    assert cluster.ANSWER_SECONDS == 10
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.2)
    why = "no answer within 0.2 seconds"
    sentence = f"Spark at {url} does not answer: {why}. Start it, or correct {setting}."
    with stopwatch() as watch, pytest.raises(launch.LaunchError) as refused:
        nightly.run_day(DAY)
    assert str(refused.value) == sentence
    assert watch.seconds < 5
    run = Run.objects.get(day=DAY)
    assert (run.state, run.error, run.step_seconds) == ("failed", sentence, [])


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_closed_port_and_an_unknown_name_are_told_with_their_address(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    scheme = SETTINGS[setting]
    for address, why in {
        f"127.0.0.1:{free_port()}": "connection refused",
        "nobody.invalid": "name or service not known",
    }.items():
        monkeypatch.setenv(setting, f"{scheme}://{address}")
        url = f"{scheme}://{address}"
        sentence = f"Spark at {url} does not answer: {why}. Start it, or correct {setting}."
        assert refusal() == sentence
    monkeypatch.setenv(setting, f"{scheme}://spark:port")
    assert refusal().startswith(f"{setting} has the address {scheme}://spark:port, which is none: ")


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[socket.socket] = []

    def hang(*_: object) -> socket.socket:
        with socket.create_server(("127.0.0.1", 0)) as server:
            released.append(server)
            return server.accept()[0]

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.1)
    monkeypatch.setenv("SPARK_MASTER", "spark://spark.example.com:7077")
    with stopwatch() as watch:
        assert "spark.example.com:7077 does not answer: no answer within" in refusal()
    assert watch.seconds < 5


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("SPARK_MASTER", "it is no master of Spark"),
        ("SPARK_REMOTE", "it is no server of Spark Connect"),
    ],
)
def test_a_server_of_another_kind_is_told(
    monkeypatch: pytest.MonkeyPatch, setting: str, why: str
) -> None:
    def answer(server: socket.socket) -> None:
        connected, _ = server.accept()
        with connected:
            connected.recv(100)
            connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=answer, args=(server,))
        thread.start()
        monkeypatch.setenv(setting, f"{SETTINGS[setting]}://127.0.0.1:{server.getsockname()[1]}")
        assert f"does not answer: {why}. Start it" in refusal()
        thread.join()


def test_one_of_several_masters_is_enough_and_others_have_no_address(
    monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    monkeypatch.setattr(cluster, "_ask_master", lambda connected: None)
    monkeypatch.setenv("SPARK_MASTER", f"spark://127.0.0.1:{free_port()},127.0.0.1:{silent_port}")
    cluster.check()
    for master in ("", "local[2]", "yarn", f"k8s://https://127.0.0.1:{silent_port}"):
        monkeypatch.setenv("SPARK_MASTER", master)
        cluster.check()
    monkeypatch.setenv("SPARK_MASTER", f"k8s://127.0.0.1:{free_port()}")
    assert "Spark at https://127.0.0.1:" in refusal()


def test_results_that_this_machine_does_not_see_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(command.JobError, match="Set RESULTS_URL to a storage that all machines"):
        __main__.refuse_unreadable(f"file://{tmp_path}")
    (tmp_path / "part-00000.parquet").touch()
    __main__.refuse_unreadable(f"file://{tmp_path}")
    __main__.refuse_unreadable("hdfs://namenode/results")
