"""A release with its image: built as for a tag, run without root, its root never written.

buildah builds on a Debian that this machine made. What the archive of the release holds is unpacked
and run by podman where root may run containers; else it is entered by bubblewrap as brokers are.
Both get the user, variables and command of the image.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Vhost
from tests.builders import declare_in, eventually
from tests.outside.test_deployment import ROOT, VERSION, git
from tests.outside.test_wheel import is_answering, read
from tests.postgres import free_port
from tests.rooted import children
from topology.definitions import Queue

pytestmark = pytest.mark.long

MAKE_TOPOLOGY = (
    "from topology.models import Broker;"
    "from topology.operations.topology_rows import create_topology;"
    "from topology.patterns.delay_levels import params;"
    "values = {'preset': 'own', 'prefix': 'orders', 'levels': '10', 'queue_type': 'classic'};"
    "create_topology(None, Broker.objects.get(), params.KIND, params.parse(values))"
)
# podman would raise the limits of processes and files, which not every root may.
_LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")


@dataclass(frozen=True)
class Image:
    """Its root file system and its configuration (OCI)."""

    root: Path
    config: dict[str, Any]
    podman: tuple[str, ...] = ()

    def inside(self, data: Path, *command: str, **variables: str) -> list[str]:
        """The command line that runs `command` in the image, with `data` as its volume."""
        user, _, group = self.config["User"].partition(":")
        kept = dict(text.split("=", 1) for text in self.config["Env"]) | variables
        if self.podman:
            check = json.dumps(self.config["Healthcheck"]["Test"][1:])
            return [
                *self.podman,
                *("run", "--rm", "--read-only", "--network", "host", "--user", f"{user}:{group}"),
                *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
                *_LIMITS,
                # Nobody has to check it again and again: only systemd could.
                *("--health-cmd", check, "--health-interval", "disable"),
                *("--volume", f"{data}:/data"),
                *(part for name, value in kept.items() for part in ("--env", f"{name}={value}")),
                *("--rootfs", str(self.root), *command),
            ]
        mounts = (
            ("--ro-bind", str(self.root), "/"),
            ("--proc", "/proc"),
            ("--dev", "/dev"),
            ("--tmpfs", "/tmp"),
            ("--ro-bind", "/etc/hosts", "/etc/hosts"),
            ("--bind", str(data), "/data"),
            *(("--setenv", name, value) for name, value in kept.items()),
        )
        return [
            *("bwrap", "--unshare-user", "--uid", user, "--gid", group, "--cap-drop", "ALL"),
            *("--unshare-pid", "--as-pid-1", "--die-with-parent", "--clearenv"),
            *(part for mount in mounts for part in mount),
            *command,
        ]

    def entered(self, data: Path, *words: str, **variables: str) -> list[str]:
        """With the entry point, and by default its arguments."""
        words = words or tuple(self.config["Cmd"])
        return self.inside(data, *self.config["Entrypoint"], *words, **variables)

    def run(self, data: Path, *words: str) -> str:
        """What a command prints, which must end well."""
        done = subprocess.run(
            self.entered(data, *words), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def is_healthy(self, data: Path, port: int) -> bool:
        """Whether the health check of the image, which runs nothing else, finds the site there."""
        if self.podman:
            listed = [*self.podman, "ps", "--quiet"]
            (name,) = subprocess.check_output(listed, text=True).split()
            check = [*self.podman, "healthcheck", "run", name]
        else:
            check = self.inside(data, *self.config["Healthcheck"]["Test"][1:], PORT=str(port))
        return subprocess.run(check, check=False).returncode == 0

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """Send SIGTERM to the first process inside; returns the exit code."""
        # podman passes it on.
        first = process.pid if self.podman else children(process.pid)[0]
        os.kill(first, signal.SIGTERM)
        return process.wait(60)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder dist of a release of what is in this checkout."""
    folder = tmp_path_factory.mktemp("release")
    source, storage = folder / "source", folder / "storage"
    listed = ["git", "ls-files"]
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for file in files.splitlines():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, source / file)
    changes = source / "CHANGELOG.md"
    heading = f"## {VERSION}, 2026-12-01"
    changes.write_text(re.sub(rf"^## {VERSION}.*$", heading, changes.read_text(), flags=re.M))
    git(source, "init", "-q")
    git(source, "add", "-f", ".")
    git(source, "commit", "-q", "-m", "Release")
    git(source, "tag", f"v{VERSION}")
    subprocess.run(["tests/rootfs.sh", "image"], cwd=ROOT, check=True)
    cache = os.environ.get("DELAYBOARD_CACHE") or Path.home() / ".cache/delayboard"
    buildah = f"buildah --root {storage} --runroot {folder}/run --storage-driver vfs"

    def build(*words: str) -> str:
        command = [*buildah.split(), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    base = build("from", "scratch")
    build("copy", "--quiet", base, f"{cache}/rootfs-image", "/")
    build("commit", "--quiet", "--rm", base, "localhost/debian")
    arguments = "--isolation chroot --build-arg BASE=localhost/debian"
    environment = {"BUILDAH": buildah, "BUILD_ARGS": arguments, "PYTHON": sys.executable}
    subprocess.run(["./release.sh"], cwd=source, env=os.environ | environment, check=True)
    yield source / "dist"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """What the archive of the image holds, its layers over one another."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "archive").mkdir()
    unpack = ("tar", "--extract", "--directory", folder / "archive", "--file")
    subprocess.run([*unpack, released / f"delayboard-{VERSION}-image.tar"], check=True)
    (described,) = json.loads((folder / "archive/manifest.json").read_text())
    config = json.loads((folder / "archive" / described["Config"]).read_text())["config"]
    root = folder / "root"
    root.mkdir()
    for layer in described["Layers"]:
        subprocess.run(
            [
                *("tar", "--extract", "--file", folder / "archive" / layer, "--directory", root),
                *("--no-same-owner", "--exclude=./dev/*", "--exclude=dev/*"),
            ],
            check=True,
        )
        for gone in root.rglob(".wh.*"):
            path = gone.with_name(gone.name.removeprefix(".wh."))
            gone.unlink()
            if gone.name != ".wh..wh..opq" and path.exists():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("hosts", "resolv.conf"):
        (root / "etc" / name).touch()
    # As in Debian's own image, which other users write to as well.
    (root / "tmp").chmod(0o1777)
    storage = ("--root", f"{folder}/storage", "--runroot", f"{folder}/run")
    podman = ("podman", *storage, "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs")
    made = Image(root, config, podman)
    if os.geteuid() != 0 or not _can_run(made, folder):
        made = Image(root, config)
    print(f"\nThe image is run by {'podman' if made.podman else 'bubblewrap'}.")
    yield made
    if made.podman:
        subprocess.run([*podman, "rm", "--all", "--force", "--time", "0"], check=True)
    shutil.rmtree(folder)


def _can_run(image: Image, data: Path) -> bool:
    if shutil.which("podman") is None:
        return False
    tried = subprocess.run(image.inside(data, "true"), capture_output=True, check=False)
    return tried.returncode == 0


@pytest.fixture
def data(image: Image, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    if image.podman:
        user, _, group = image.config["User"].partition(":")
        os.chown(tmp_path / "data", int(user), int(group))
    return tmp_path / "data"


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_release_has_its_parts_with_their_sums(released: Path) -> None:
    names = {file.name for file in released.iterdir()}
    assert names == {
        f"delayboard-{VERSION}-py3-none-any.whl",
        f"delayboard-{VERSION}-image.tar",
        f"delayboard-{VERSION}.cdx.json",
        f"delayboard-{VERSION}.tgz",
        f"CHANGES-{VERSION}.md",
        "SHA256SUMS",
    }
    for line in (released / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        with (released / name).open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digest
    listed = json.loads((released / f"delayboard-{VERSION}.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    assert listed["metadata"]["component"]["version"] == VERSION
    named = {part["name"]: part["version"] for part in listed["components"]}
    locked = "".join((ROOT / f"requirements{of}.txt").read_text() for of in ("", "-s3"))
    assert named == dict(re.findall(r"^([\w.-]+)(?:\[.*\])?==([\w.]+)", locked, re.MULTILINE))


def test_the_image_says_what_it_is(image: Image) -> None:
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.version"] == VERSION
    assert re.fullmatch("[0-9a-f]{40}", labels["org.opencontainers.image.revision"])
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert (image.config["User"], list(image.config["Volumes"])) == ("10001:10001", ["/data"])


def test_the_main_job_runs_in_the_image(
    image: Image, vhost: Vhost, data: Path, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "log"
    urls = ("--broker", vhost.amqp_url, "--management", vhost.management_url)
    began = time.monotonic()
    with running(
        image.entered(data, "run", *urls, "--port", str(port), PORT=str(port)), log
    ) as process:
        site = f"http://127.0.0.1:{port}"
        eventually(lambda: is_answering(f"{site}/livez"), "the site answers", seconds=120)
        print(f"\nThe image answered after {time.monotonic() - began:.1f} s (20 are the goal).")
        assert image.is_healthy(data, port)
        eventually(lambda: '"worker": "ok"' in read(f"{site}/readyz"), "the worker runs")
        declare_in(vhost, Queue("done"))
        image.run(data, "shell", "-c", MAKE_TOPOLOGY)
        image.run(data, "apply", "orders-delay-level")
        waits = ("publish", "--topology", "orders-delay-level", "--target", "done")
        image.run(data, *waits, "--delay", "15m", "--message-id", "m1")
        listed = partial(image.run, data, "scheduled", "--json")
        eventually(lambda: '"message_id":"m1"' in listed(), "m1 is listed as waiting")
        # Exit code 0: it was seen to arrive.
        image.run(data, *waits, "--delay", "2s", "--wait", "60s")
        assert image.stop(process) == 0
    # Spark starts, in the root that nothing writes.
    today = datetime.now(UTC).date().isoformat()
    assert today in image.run(data, "run_nightly", "--date", today)
    assert "Traceback" not in log.read_text()


def test_site_and_worker_end_well_and_log_json(image: Image, data: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    image.run(data, "migrate", "--noinput")
    with running(image.entered(data, PORT=str(port)), log) as process:
        address = f"http://127.0.0.1:{port}/login/"
        eventually(lambda: is_answering(address), "the site answers", seconds=120)
        assert image.stop(process) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    asked = [line for line in lines if line.get("path") == "/login/"]
    assert {line["status"] for line in asked} == {200}
    assert all(line["request_id"] for line in asked)
    heartbeat = data / "worker.heartbeat"
    with running(image.entered(data, "worker"), log) as process:
        eventually(heartbeat.exists, "the worker runs", seconds=120)
        assert image.stop(process) == 0
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["The worker runs."]
    refused = subprocess.run(
        image.entered(data, "serve", LOG_LEVEL="loud"), capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stderr) == (
        2,
        "LOG_LEVEL is “loud”. Set DEBUG, WARNING, ERROR, CRITICAL or INFO.\n",
    )


def test_what_is_not_data_is_not_written(image: Image, data: Path) -> None:
    script = "touch /opt/delayboard/x /usr/x /home/x; touch /tmp/x /data/x && id -u"
    done = subprocess.run(
        image.inside(data, "sh", "-c", script), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "10001\n")
    assert done.stderr.count("Read-only file system") == 3
