"""The package: built from the checkout, installed in an empty environment, and used there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.brokers import Vhost
from tests.builders import eventually
from tests.postgres import free_port

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment that has the wheel and nothing else of ours."""
    folder = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for file in files.splitlines():
        (folder / "source" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / "source" / file)
    python, pins = folder / "venv/bin/python", folder / "pins.txt"
    locked = (ROOT / "requirements.txt").read_text()
    pins.write_text("\n".join(re.findall(r"^\S+==.*(?= \\)", locked, re.MULTILINE)))
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", folder / "venv"],
        [python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, folder / "source"],
        [python, "-m", "pip", "install", "-q", "-c", pins, "--find-links", folder, "delayboard"],
    ]
    for command in commands:
        subprocess.run(command, check=True)
    return python.parent


def environment(tmp_path: Path) -> dict[str, str]:
    ours = ("DJANGO_SETTINGS_MODULE", "DELAYBOARD_VAR", "PYTHONPATH")
    kept = {name: text for name, text in os.environ.items() if name not in ours}
    return {**kept, "XDG_DATA_HOME": str(tmp_path / "data")}


def test_the_package_runs_from_any_folder_for_ones_own_broker(
    installed: Path, vhost: Vhost, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "log"
    command: list[str | Path] = [
        installed / "delayboard",
        "run",
        "--port",
        str(port),
        "--broker",
        vhost.amqp_url,
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--management", vhost.management_url],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        site = f"http://127.0.0.1:{port}"
        eventually(lambda: is_answering(f"{site}/livez"), "the site answers", seconds=120)
        page = read(f"{site}/login/")
        assert "<h1" in page
        for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
            assert read(site + address)
        eventually(lambda: '"worker": "ok"' in read(f"{site}/readyz"), "the worker runs")
        assert '"brokers": "ok"' in read(f"{site}/readyz")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert (tmp_path / "data/delayboard/delayboard.sqlite3").is_file(), log.read_text()
    assert "Traceback" not in log.read_text()


def test_nothing_is_imported_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    """Each of our packages, from a folder that has packages of the same names."""
    for name in ("analytics", "delayboard", "topology"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('of the folder')")
    script = (
        "import analytics, delayboard.settings, sys, topology;"
        "modules = analytics, delayboard, topology;"
        "print(*sys.path, *(m.__file__ for m in modules), delayboard.settings.TEMPLATES[0]['DIRS'])"
    )
    done = subprocess.run(
        [installed / "python", "-P", "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(ROOT) not in done.stdout
    assert str(installed.parent / "lib") in done.stdout
    help_text = subprocess.run(
        [installed / "delayboard", "help"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "run_nightly" in help_text


def test_commands_work_without_a_database_and_name_what_is_missing(
    installed: Path, tmp_path: Path
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [installed / "delayboard", *words],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )

    definitions = tmp_path / "definitions.json"
    definitions.write_text('{"queues": [], "exchanges": [], "bindings": []}')
    done = run("recognize", str(definitions))
    assert (done.returncode, done.stdout) == (0, "No queue delays messages.\n")
    done = run("run_nightly", "--date", "2026-01-01")
    assert "delayboard[spark]" in done.stdout + done.stderr


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read(), "utf-8", "replace")


def is_answering(address: str) -> bool:
    try:
        return bool(read(address))
    except OSError:
        return False
