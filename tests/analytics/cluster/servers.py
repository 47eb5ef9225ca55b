"""A standalone master with two workers, and a Spark Connect server, of PySpark's own jars."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from analytics.launch import ROOT
from tests.builders import eventually
from tests.postgres import free_port

SPARK = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
REQUIREMENTS = ROOT / "requirements-spark-connect.txt"
START_SECONDS = 180.0


@contextmanager
def started(folder: Path, name: str, command: Sequence[str]) -> Iterator[Path]:
    """The program, for the length of the block; its log."""
    log = folder / f"{name}.log"
    variables = os.environ | {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        # A worker ends its executors then.
        process.terminate()
        process.wait()


@contextmanager
def standalone(folder: Path, *, own_disk: Path | None = None) -> Iterator[str]:
    """A master with two workers of one core each; its URL. What workers write into `own_disk` no
    other process sees.
    """
    port = free_port()
    address = ("--host", "127.0.0.1", "--webui-port", "0")
    run = str(SPARK / "bin" / "spark-class")
    master = (run, f"{DEPLOY}.master.Master", *address, "--port", str(port))
    size = ("--cores", "1", "--memory", "1g")
    url = f"spark://127.0.0.1:{port}"
    machine = ("bwrap", "--dev-bind", "/", "/", "--tmpfs", str(own_disk)) if own_disk else ()
    workers = [
        (
            *machine,
            run,
            f"{DEPLOY}.worker.Worker",
            *address,
            *size,
            "--work-dir",
            str(folder / name),
            url,
        )
        for name in ("one", "two")
    ]
    with (
        started(folder, "master", master) as log,
        started(folder, "one", workers[0]),
        started(folder, "two", workers[1]),
    ):
        eventually(
            lambda: log.read_text().count("Registering worker") >= 2,
            "two workers at the master",
            seconds=START_SECONDS,
        )
        yield url


@contextmanager
def connect(folder: Path) -> Iterator[str]:
    """A Spark Connect server with two cores; its URL."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    server = [
        *(str(SPARK / "bin" / "spark-submit"), "--class", CONNECT, "--master", "local[2]"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    with started(folder, "connect", server):
        eventually(lambda: is_open(port), "a Spark Connect server", seconds=START_SECONDS)
        yield f"sc://127.0.0.1:{port}"


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def python_with_connect(folder: Path) -> Path:
    """Python with our packages and, beside them, those of REQUIREMENTS: as README installs them."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(str(SPARK.parent))
    install = (python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", REQUIREMENTS)
    subprocess.run(install, check=True)
    return python
