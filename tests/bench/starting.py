"""What a command costs before it does anything, against the libraries that it cannot do without."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.bench.figures import say

LIBRARIES = (
    "import django, pika, requests; from django.conf import settings; settings.configure(); "
    "django.setup()"
)
# A name that does not exist: the command ends when it would begin.
COMMANDS = {
    "walk": ["walk", "nobody", "", "k"],
    "plan": ["plan", "nobody"],
    "scheduled": ["scheduled", "--topology", "nobody"],
    "lint with a file": ["lint", "nobody.json"],
}
TIMES = 7


def measure(folder: Path) -> None:
    os.environ["DELAYBOARD_VAR"] = str(folder)
    libraries = cpu_seconds("-c", LIBRARIES)
    say("import of Django, pika and requests", libraries * 1000, "milliseconds of a processor")
    for name, arguments in COMMANDS.items():
        one = cpu_seconds("manage.py", *arguments)
        say(f"start of {name}", one * 1000, "milliseconds of a processor")
        say(f"start of {name} against the import", one / libraries, "times; 2.5 at most is wanted")


def cpu_seconds(*arguments: str) -> float:
    """The least of some runs: bytecode and files are in the caches then."""
    return min(_cpu_seconds(*arguments) for _ in range(TIMES))


def _cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
