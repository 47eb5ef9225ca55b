"""A broker with 10,000 queues, 10,000 exchanges and 30,000 bindings, and the site that shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from delayboard.demo.node import PrivateNode
from tests.bench.figures import say, seconds
from tests.bench.multitude import fill, multitude

WANTED = {
    "poll": "",
    "most": "; under 500 is wanted",
    "recognising,": "; under 5 is wanted",
    "look": "; under 3 is wanted",
    "live": "; under 50 KB after the first is wanted",
}


def measure(folder: Path) -> None:
    node = PrivateNode(folder / "node", "scale")
    node.start()
    try:
        making = seconds(lambda: fill(node.amqp_url, multitude()))
        say("declaring it all", making, "seconds, six connections")
        for what, figure in figures_of(node.amqp_url, node.management_url, folder).items():
            say(
                what,
                figure,
                "at 10,000 queues" + WANTED.get(what.split()[0], "; under 1 is wanted"),
            )
    finally:
        node.kill()


def figures_of(amqp_url: str, management_url: str, folder: Path) -> dict[str, float]:
    """Of a site in a process of its own, with an empty database in `folder`."""
    variables = {
        **os.environ,
        "DELAYBOARD_VAR": str(folder),
        "DATABASE_URL": f"sqlite://{folder / 'large.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "delayboard.settings",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.large_site", amqp_url, management_url],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
