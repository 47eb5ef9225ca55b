"""Every example of docs/cluster.md is read by what it is written for."""

from __future__ import annotations

import re
import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cronsim import CronSim
from django.core.management import load_command_class

DAY = datetime(2026, 11, 20, tzinfo=UTC)
TEXT = Path("docs/cluster.md").read_text()
EXAMPLES: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.S | re.M)
COMMANDS: list[tuple[str, str]] = re.findall(r"manage\.py (\w+)([^`\n\"]*)", TEXT)


@pytest.mark.parametrize(("language", "example"), EXAMPLES)
def test_an_example_is_of_its_language(language: str, example: str) -> None:
    if language == "sh":
        subprocess.run(["bash", "-n"], input=example, text=True, check=True)
    elif language == "python":
        compile(example, "example", "exec")
        (schedule,) = re.findall(r'schedule="(.*?)"', example)
        next(CronSim(schedule, DAY))
    elif language == "crontab":
        *variables, line = example.splitlines()
        assert all(re.fullmatch(r"[A-Z_]+=\S+", one) for one in variables)
        *times, command = line.split(maxsplit=5)
        next(CronSim(" ".join(times), DAY))
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)
    else:
        assert language == "properties"
        assert all(re.fullmatch(r"spark\.\S+ +\S+", one) for one in example.splitlines())


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_a_command_takes_its_arguments(name: str, arguments: str) -> None:
    words = re.sub(r"\{\{.*?\}\}|\bDATE\b", "2026-11-20", arguments.partition("`")[0])
    parser = load_command_class("analytics", name).create_parser("manage.py", name)
    parser.parse_args(shlex.split(words))
