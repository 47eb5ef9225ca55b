"""`manage.py lint`: formats, exit codes, baselines, and input that is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from delayboard.run_command import run_command
from tests.commands import run
from tests.site.page_setup import know
from tests.topology.builders import a_queue
from tests.topology.findings.examples.example import Example, binding, exchange, policy, queue
from topology.findings.find import find
from topology.models import Broker
from topology.operations.finding_rows import mute_finding

LOST = Example(queues=(queue("lost", dlx="not-there"),)).definitions()
CLUSTER = {
    "rabbit_version": "3.8.9",
    "vhosts": [{"name": "/"}, {"name": "shop"}],
    "queues": [
        {**queue("lost", dlx="not-there"), "vhost": "shop"},
        {**queue("wait", ttl=5, dlx="", key="wait-not"), "vhost": "/"},
    ],
    "exchanges": [],
    "bindings": [],
    "parameters": [],
    "policies": [],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@a"}],
}
START_CPU_SECONDS = 2.0


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    return written(tmp_path, LOST)


def written(folder: Path, document: Any) -> Path:
    file = folder / "definitions.json"
    file.write_text(json.dumps(document))
    return file


def lint(source: Path | str, *options: str) -> tuple[int, str, str]:
    """The exit code, and what is printed on both outputs."""
    return run("lint", str(source), *options)


def test_text_names_the_object_the_reason_and_the_remedy(definitions: Path) -> None:
    code, text, errors = lint(definitions)
    assert (code, errors) == (1, "")
    assert text.startswith("F01 Loss: Dead-letter exchange missing: not-there\n")
    assert "  queue lost: x-dead-letter-exchange = not-there\n" in text
    assert "\n    VHOST=VIRTUAL_HOST\n" in text
    assert "\n  Replace VIRTUAL_HOST with the name of the virtual host.\n" in text
    # The queue for the dead letters needs no name of a person.
    assert 'rabbitmqadmin --vhost "$VHOST" declare queue --name=not-there ' in text
    assert text.endswith("1 finding: 1 loss.\n")


def test_the_exit_code_depends_on_the_lowest_severity_that_fails(tmp_path: Path) -> None:
    loop = Example(queues=(queue("q", dlx="", key="w"), queue("w", ttl=5, dlx="", key="q")))
    file = written(tmp_path, loop.definitions())
    assert lint(file)[0] == 0
    assert lint(file, "--fail-on", "style")[0] == 1


def test_json_and_sarif_are_documents_and_github_gets_one_line(definitions: Path) -> None:
    (found,) = json.loads(lint(definitions, "--format", "json")[1])["findings"]
    assert (found["rule"], found["severity"]) == ("F01", "loss")
    assert found["evidence"][0]["set_by"] == "argument"
    (run,) = json.loads(lint(definitions, "--format", "sarif")[1])["runs"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("F01", "error")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == str(definitions)
    (line,) = lint(definitions, "--format", "github")[1].splitlines()
    assert line.startswith(f"::error file={definitions},title=F01 Dead-letter exchange missing%3A ")


def test_an_export_of_a_cluster_is_checked_by_vhost(tmp_path: Path) -> None:
    file = written(tmp_path, CLUSTER)
    text = lint(file)[1]
    assert text.index("Virtual host /\n") < text.index("F02") < text.index("Virtual host shop\n")
    assert "F02" not in lint(file, "--vhost", "shop")[1]
    assert "It has “/”, “shop”." in lint(file, "--vhost", "none")[2]


def test_an_export_of_one_vhost_may_name_it_in_its_policies_alone(tmp_path: Path) -> None:
    given = {**policy("p", "^wait", message_ttl=5), "vhost": "shop"}
    document = {**Example(queues=(queue("wait"),)).definitions(), "policies": [given]}
    text = lint(written(tmp_path, document))[1]
    assert "queue wait: x-message-ttl = 5, set by policy p\n" in text
    assert "Virtual host" not in text


def test_a_policy_and_an_operator_policy_are_named_as_what_sets_a_value(tmp_path: Path) -> None:
    document = {
        **Example(queues=(queue("lost"), queue("wait"))).definitions(),
        "policies": [
            {"name": "p", "pattern": "^lost", "definition": {"dead-letter-exchange": "x"}}
        ],
        "parameters": [
            {
                "component": "operator_policy",
                "name": "o",
                "value": {
                    "pattern": "^wait",
                    "apply-to": "queues",
                    "definition": {"message-ttl": 5},
                },
            }
        ],
    }
    text = lint(written(tmp_path, document))[1]
    assert "x-dead-letter-exchange = x, set by policy p" in text
    assert "x-message-ttl = 5, set by operator policy o" in text


def test_an_alternate_exchange_by_a_policy_counts(tmp_path: Path) -> None:
    document: Any = {
        **Example(
            queues=(queue("work", dlx="dead", key="none"), queue("rest")),
            exchanges=(exchange("dead"), exchange("other", "fanout")),
            bindings=(binding("other", "rest"),),
        ).definitions(),
        "policies": [
            {
                "name": "p",
                "pattern": "^dead",
                "apply-to": "exchanges",
                "definition": {"alternate-exchange": "other"},
            }
        ],
    }
    assert lint(written(tmp_path, document))[1] == "No findings.\n"
    document["policies"][0]["definition"]["alternate-exchange"] = "missing"
    text = lint(written(tmp_path, document))[1]
    assert "exchange dead: alternate-exchange = missing, set by policy\n" in text


def test_what_a_baseline_knows_is_not_reported_again(definitions: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "known.json"
    assert lint(definitions, "--write-baseline", str(baseline))[0] == 0
    code, text, _ = lint(definitions, "--baseline", str(baseline))
    assert (code, text) == (0, "No findings.\n")
    more = {**LOST, "queues": [*LOST["queues"], queue("new", dlx="not-there")]}
    code, text, _ = lint(written(tmp_path, more), "--baseline", str(baseline))
    assert code == 1
    assert "queue new" in text
    assert "queue lost" not in text


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "is empty."),
        (b" \n", "is empty."),
        (b"[1", "is not JSON."),
        (b"\xff\xfe\x00", "is not JSON."),
        (b"[" * 100_000, "is not JSON."),
        (b"[]", "no export of RabbitMQ definitions"),
        (b'{"queues": 5}', "“queues” of the file is not a list"),
        (b'{"queues": [{"name": 5}]}', "is not text."),
        (b'{"queues": [{"durable": true}]}', "A queue in the file has no name."),
        (b'{"queues": [{"name": "\\ud800"}]}', "is not valid Unicode."),
        (b'{"queues": [{"name": "%s"}]}' % (b"n" * 256), "more than 255 bytes"),
    ],
)
def test_what_is_no_export_is_refused_in_one_sentence(
    tmp_path: Path, raw: bytes, sentence: str
) -> None:
    file = tmp_path / "definitions.json"
    file.write_bytes(raw)
    code, text, errors = lint(file)
    assert (code, text) == (2, "")
    assert sentence in errors
    assert errors.count("\n") == 1


def test_a_file_that_is_not_there_and_odd_options_are_refused(definitions: Path) -> None:
    assert lint("not-there.json")[0] == 2
    assert lint(definitions, "--baseline", str(definitions))[0] == 2
    code, text, errors = lint(definitions, "--rabbitmq-version", "newest")
    assert (code, text, errors.count("\n")) == (2, "", 1)


def test_an_argument_that_is_no_text_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["manage.py", "lint", "\udcff"]) == 2
    assert capsys.readouterr().err == "The command was not run. An argument is not valid UTF-8.\n"


@pytest.mark.parametrize(
    "name", ["n" * 255, "ü漢字 ‘q’", "#.*", "a/b c?d", "'; rm -rf $HOME", "\x1b[2J"]
)
def test_odd_names_are_shown_as_text(tmp_path: Path, name: str) -> None:
    document = Example(
        queues=(queue(name, dlx=name, ttl=5),),
        exchanges=(exchange("x", "topic"),),
        bindings=(binding("x", name, name),),
    ).definitions()
    code, text, errors = lint(written(tmp_path, document))
    assert (code, errors) == (1, "")
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "odd",
    [
        {"arguments": 5},
        {"arguments": {"x-message-ttl": "5", "x-dead-letter-exchange": 5, "x-queue-type": [1]}},
        {"arguments": {"x-message-ttl": -1, "x-dead-letter-exchange": "", "x-expires": 10**30}},
        {"arguments": {"x-dead-letter-exchange": "", "x-expires": -(10**30)}},
        {"durable": "yes", "auto_delete": None, "arguments": None},
    ],
)
def test_odd_values_are_no_trouble(tmp_path: Path, odd: dict[str, Any]) -> None:
    policies = [{"name": "p", "pattern": "(", "definition": 7, "priority": "x"}]
    document = {"queues": [{"name": "q", **odd}], "policies": policies, "exchanges": [{"type": 5}]}
    assert lint(written(tmp_path, document))[0] in (0, 1)


@pytest.mark.django_db
def test_a_broker_is_checked_by_its_slug(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    from topology import snapshots

    seen = know(broker, a_queue("lost", dlx="not-there"))
    monkeypatch.setattr(snapshots, "poll", lambda broker, seconds: snapshots.latest(broker.pk))
    assert "queue lost" in lint(broker.slug)[1]
    for one in find(seen):
        later = timezone.now() + timedelta(days=1)
        mute_finding(None, broker, one, reason="known", until_at=later)
    assert lint(broker.slug) == (0, "No findings.\n", "1 muted finding is not listed.\n")
    code, _, errors = lint("nobody")
    assert code == 2
    assert "“nobody” is neither a file nor a broker. Existing brokers: " in errors


def test_it_starts_quickly_and_without_a_database(definitions: Path) -> None:
    done = started(definitions, subprocess.PIPE)
    assert done.returncode == 1, done.stderr
    assert "F01" in done.stdout
    assert float(done.stderr) < START_CPU_SECONDS


def test_a_reader_that_has_enough_is_no_error(definitions: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = started(definitions, writer)
    os.close(writer)
    # Nothing but the seconds.
    assert float(done.stderr) > 0


def started(definitions: Path, output: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _TIMED, "lint", str(definitions)],
        env={**os.environ, "DATABASE_URL": "postgres://nobody@127.0.0.1:9/none"},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
    )


_TIMED = """
import sys, time
from delayboard.run_command import run_command
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "delayboard.settings"
try:
    run_command(["manage.py", *sys.argv[1:]])
finally:
    sys.stderr.write(str(time.process_time()))
"""
