"""One mistake has one exit code in every command, and with --json it is one JSON document."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from delayboard.run_command import OURS
from tests.commands import run
from topology.management.command import BoardCommand
from topology.management.exit_codes import ExitCode
from topology.models import Broker

pytestmark = pytest.mark.django_db
COMMANDS = {
    name: app if isinstance(app, str) else ""
    for name, app in sorted(get_commands().items())
    if app in OURS
}
NOBODY = "nobody"
# The arguments of each command that names a broker, and of each that names a topology.
UNKNOWN_BROKER = {
    "annotate": ["deploy", f"--broker={NOBODY}", "--json"],
    "export_dead_letters": [NOBODY, "--q="],
    "import_dead_letters": [NOBODY, "-"],
    "import_log": ["events.json", f"--broker={NOBODY}"],
    "import_topologies": [NOBODY, "-"],
    "lint": [NOBODY, "--format=json"],
    "publish": [f"--broker={NOBODY}", "--routing-key=k", "--json"],
    "recognize": [NOBODY, "--json"],
    "replay_dead_letters": [NOBODY, "--query=", "--json"],
    "walk": [NOBODY, "", "k", "--json"],
}
UNKNOWN_TOPOLOGY = {
    "annotate": ["deploy", f"--topology={NOBODY}", "--json"],
    "apply": [NOBODY, "--json"],
    "edit": [NOBODY, "delay=1s", "--json"],
    "export_topology": [NOBODY],
    "migrate_delays": [NOBODY, NOBODY],
    "plan": [NOBODY, "--json"],
    "publish": [f"--topology={NOBODY}", "--json"],
    "scheduled": [f"--topology={NOBODY}", "--json"],
    "teardown": [NOBODY, "--json"],
    "verify": [NOBODY, "--json"],
}
MISTAKES = [
    *((name, given) for name, given in UNKNOWN_BROKER.items()),
    *((name, given) for name, given in UNKNOWN_TOPOLOGY.items()),
    *((name, ["--no-such-option"]) for name in COMMANDS),
    *((name, ["--no-such-option", "--json"]) for name in COMMANDS),
]


@pytest.mark.parametrize(("name", "given"), MISTAKES)
def test_wrong_input_is_one_sentence_and_one_code(
    broker: Broker, name: str, given: list[str]
) -> None:
    code, out, err = run(name, *given)
    assert code == ExitCode.NOT_RUN
    assert err.count("\n") == 1, err
    assert not err.startswith("CommandError")
    if "--json" in given or "--format=json" in given:
        assert json.loads(out) == {"error": err.strip()}
    else:
        assert out == ""


@pytest.mark.parametrize(("name", "app"), COMMANDS.items())
def test_each_command_leaves_its_errors_to_one_place(name: str, app: str) -> None:
    assert isinstance(load_command_class(app, name), BoardCommand)
    source = Path(__file__).parents[2] / app / "management" / "commands" / f"{name}.py"
    assert not re.findall(r"(?:exit|returncode=|_CODE)\W*\d", source.read_text())


def test_every_command_that_names_a_broker_or_topology_is_tried() -> None:
    named = set()
    for name, app in COMMANDS.items():
        parser = load_command_class(app, name).create_parser("manage.py", name)
        actions = {action.dest for action in parser._actions}
        if actions & {"broker", "topology", "source", "target"}:
            named.add(name)
    # `run` has the address of a broker, not its name.
    assert named - {"run"} == set(UNKNOWN_BROKER) | set(UNKNOWN_TOPOLOGY)


def test_an_error_before_a_command_begins_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from delayboard import run_command

    def refuse(arguments: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_command, "needs_database", refuse)
    code, out, err = run("plan", NOBODY, "--json")
    assert (code, json.loads(out)) == (ExitCode.NOT_RUN, {"error": err.strip()})


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from delayboard import run_command

    def interrupt(arguments: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "needs_database", interrupt)
    assert run("plan", NOBODY) == (ExitCode.STOPPED, "", "The command was stopped.\n")
