"""A command that ends at once loads no page, no worker and none of their libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.processes import ROOT, environment

pytestmark = pytest.mark.django_db

# What each costs is in `python -m tests.bench starting`.
_NOT_LOADED = (
    *(
        "apprise",
        "channels.layers",
        "plotly",
        "pyspark",
        "uvicorn",
        "django.db.migrations.executor",
    ),
    *("delayboard.urls", "delayboard.views", "delayboard.live", "delayboard.worker"),
    *("delayboard.alerts", "delayboard.dead_letters.replay", "delayboard.retention.table"),
    *("analytics.jobs", "analytics.charts", "analytics.views", "topology.views", "topology.admin"),
    *("topology.graph.dot", "delayboard.templatetags"),
)
_RUN = """
import sys
sys.argv = ["manage.py", *sys.argv[1:]]
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "delayboard.settings"
from delayboard.run_command import run_command
try:
    code = run_command(sys.argv)
except SystemExit as ended:
    code = ended.code
print(*sys.modules, sep="\\n", file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, ["walk", "nobody", "", "k"]),
        (2, ["plan", "nobody"]),
        (2, ["lint", "nobody.json"]),
        (0, ["scheduled"]),
    ],
)
def test_a_command_loads_only_what_it_needs(code: int, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr[-2000:]
    assert set(_NOT_LOADED) & set(done.stderr.splitlines()) == set()
