"""A RabbitMQ node of our own: its folder, its ports, its Erlang port mapper, no system service.

`make run` keeps one in `var/broker`, the tests start theirs in temporary folders. Everything the
node needs to come back (ports, password, cookie, data) lies in its folder. Its processes carry the
folder in their environment, so that one left behind by a crash is recognized, never guessed by
name.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import IO, Self

from delayboard.demo.place import SERVER, Place
from delayboard.demo.ports import Holder, Ports, choose_ports, is_free
from delayboard.demo.processes import MARK, end, marked_processes, send

USERNAME = "delayboard"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
LOG_TAIL_LINES = 30

_PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_tracing",
    "rabbitmq_shovel",
    "rabbitmq_shovel_management",
    "rabbitmq_prometheus",
)


class NodeError(Exception):
    """The node cannot be started; the message holds the tail of its log."""


def configuration(ports: Ports, password: str, statistics_interval_ms: int) -> str:
    """Return the text of `rabbitmq.conf`; the user is created at the first start only."""
    settings = {
        "listeners.tcp.1": f"127.0.0.1:{ports.amqp}",
        "management.tcp.ip": "127.0.0.1",
        "management.tcp.port": ports.management,
        "prometheus.tcp.ip": "127.0.0.1",
        "prometheus.tcp.port": ports.prometheus,
        "default_user": USERNAME,
        "default_pass": password,
        "default_user_tags.administrator": "true",
        "collect_statistics_interval": statistics_interval_ms,
        "vm_memory_high_watermark.absolute": "512MB",
        "disk_free_limit.absolute": "50MB",
        # By default a line for each step of each connection, in the file and on the console.
        "log.file.level": "warning",
        "log.console.level": "warning",
        "log.file.rotation.size": 10_000_000,
        "log.file.rotation.count": 2,
    }
    return "".join(f"{key} = {value}\n" for key, value in settings.items())


def advanced_configuration(folder: Path) -> str:
    """Return the text of `advanced.config`: where the tracing plugin writes.

    By default that is one folder for all nodes of a machine; `tracing.dir` is unknown to 3.10.
    """
    return f"[{{rabbitmq_tracing, [{{directory, {json.dumps(str(folder))}}}]}}].\n"


def environment(place: Place, name: str, ports: Ports) -> dict[str, str]:
    """Return the whole environment of the node's processes; nothing else is inherited."""
    folder = place.inside
    return {
        MARK: str(place.folder),
        "PATH": place.path,
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"{name}@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        # No busy waiting: an idle demonstration should not warm a laptop.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
        ),
    }


class PrivateNode:
    """One node in `folder`; data survives `stop` and `start`.

    Its programs are those of `place`, by default this machine's.

    Start it from a thread that lives as long as the node should: the kernel ends the node when
    that thread ends, so that a killed program leaves no broker behind.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        statistics_interval_ms: int = 5000,
        place: Place | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self._place = place or Place(self.folder)
        self.name = name
        self.statistics_interval_ms = statistics_interval_ms
        self.username = USERNAME
        self.version = ""
        self._ports: Ports | None = None
        self._holder = Holder()
        self._server: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the process that this object started is alive."""
        return self._server is not None and self._server.poll() is None

    @property
    def password(self) -> str:
        """The password of `username`, made at the first use and kept in the folder (0600)."""
        file = self.folder / "password"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_private(file, secrets.token_urlsafe(24))
        return file.read_text()

    @property
    def amqp_port(self) -> int:
        """The AMQP port on 127.0.0.1; known once the node was started."""
        return self._known_ports().amqp

    @property
    def management_port(self) -> int:
        """The management port on 127.0.0.1; known once the node was started."""
        return self._known_ports().management

    @property
    def amqp_url(self) -> str:
        """The AMQP address of the vhost `/`, password included."""
        return f"amqp://{USERNAME}:{self.password}@127.0.0.1:{self.amqp_port}/%2F"

    @property
    def management_url(self) -> str:
        """The address of the management API, without credentials."""
        return f"http://127.0.0.1:{self.management_port}"

    def start(self) -> None:
        """Start the node and return when it answers on both ports.

        What an earlier, killed start left in the folder is stopped first. Raises NodeError when
        RabbitMQ is not installed, another process runs this node, the node dies, or it does not
        answer within 60 seconds.
        """
        if self.is_running:
            return
        missing = self._place.missing()
        if missing:
            raise NodeError(missing)
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = (self.folder / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise NodeError(f"another process runs the node in {self.folder}") from None
        self._lock = lock
        try:
            end(list(marked_processes(self.folder)), patience=STOP_SECONDS)
            ports = self._prepare()
            self._launch(ports)
            self._await_answer()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the node and its port mapper: asked first, killed after 20 seconds."""
        if self._server is not None and self._server.poll() is None:
            for process in self._place.to_stop(self._server.pid):
                send(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the node at once, as a power cut would; its data stays."""
        if self._lock is None:
            return
        end(list(marked_processes(self.folder)), patience=0)
        for process in (self._server, self._epmd):
            if process is not None:
                process.wait()
        self._lock.close()
        self._server = self._epmd = self._lock = None

    def log_tail(self) -> str:
        """Return the last lines that the node wrote, to its log and to its console."""
        files = (self.folder / "log" / f"{self.name}@localhost.log", self.folder / "console.log")
        lines: list[str] = []
        for file in files:
            if file.exists():
                lines += file.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(lines)

    def _known_ports(self) -> Ports:
        if self._ports is None:
            raise NodeError(f"the node in {self.folder} was not started")
        return self._ports

    def _prepare(self) -> Ports:
        kept = self.folder / "node.json"
        earlier = json.loads(kept.read_text()) if kept.exists() else {}
        ports = choose_ports(earlier, self.folder, self._holder.take)
        kept.write_text(json.dumps(asdict(ports)))
        for name in ("data", "log"):
            (self.folder / name).mkdir(exist_ok=True)
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            _write_private(cookie, secrets.token_hex(20), mode=0o400)
        (self.folder / "plugins").write_text(f"[{','.join(_PLUGINS)}].\n")
        (self.folder / "advanced.config").write_text(
            advanced_configuration(self._place.inside / "traces")
        )
        _write_private(
            self.folder / "rabbitmq.conf",
            configuration(ports, self.password, self.statistics_interval_ms),
        )
        self._ports = ports
        return ports

    def _launch(self, ports: Ports) -> None:
        variables = environment(self._place, self.name, ports)
        with (self.folder / "console.log").open("wb") as console:

            def launch(*command: str) -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    self._place.command(*command),
                    env=variables,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

            # Erlang would start a port mapper that outlives it; ours has a process id to end.
            self._epmd = launch("epmd", "-port", str(ports.epmd), "-address", "127.0.0.1")
            deadline = time.monotonic() + 5
            while is_free(ports.epmd) and time.monotonic() < deadline:
                time.sleep(0.02)
            self._server = launch(SERVER)

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self.is_running:
                raise NodeError(f"RabbitMQ ended while it started:\n{self.log_tail()}")
            version = self._answer()
            if version:
                self.version = version
                return
            time.sleep(0.1)
        raise NodeError(
            f"RabbitMQ did not answer on {self.management_url} "
            f"within {START_SECONDS:.0f} seconds:\n{self.log_tail()}"
        )

    def _answer(self) -> str:
        """Return the broker's version, or "" while it does not answer on both ports.

        Raises NodeError when the broker refuses the kept password: its data has another one.
        """
        if is_free(self.amqp_port):
            return ""
        token = base64.b64encode(f"{USERNAME}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            f"{self.management_url}/api/overview", headers={"Authorization": f"Basic {token}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=5) as response:
                overview = json.load(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 401:
                raise NodeError(
                    f"the data in {self.folder} was made with another password; "
                    "delete that folder to start again"
                ) from error
            return ""
        except (OSError, ValueError):
            return ""
        return str(overview.get("rabbitmq_version", ""))


def _write_private(file: Path, text: str, mode: int = 0o600) -> None:
    """Write `text` to `file`, which nobody else may read at any moment."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
