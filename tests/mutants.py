"""Mutation testing of the modules that carry the guarantees: `python -m tests.mutants [MODULE]`.

mutmut changes one thing of a module at a time, and a test that proves the module must fail.
Everything lies below var/mutants, with a survivors.txt for each module. A score is the same each
time: hypothesis and the sample of a large module are drawn from fixed seeds.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK = ROOT / "var" / "mutants"
SOURCES = ["topology", "analytics", "delayboard"]
BESIDE = ["tests", "templates", "docs", "manage.py"]
SEED = 1
MUTMUT = "from mutmut.__main__ import cli; cli()"
NAMES = """
import sys
from pathlib import Path
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name
for file in map(Path, sys.argv[1:]):
    for name in mutate_file_contents(str(file), file.read_text()).mutant_names:
        print(get_mutant_name(file, name))
"""
# What mutmut mutates though it is decorated.
MUTATED = {"staticmethod", "classmethod"}
# Exit codes of mutmut: a test failed; it did not end (SIGXCPU), which counts as killed.
FAILED = {1, 3}
ENDLESS = {-24, 24, 36, 152, 255}
WALKS = (
    "tests/topology/test_walk.py",
    "tests/topology/test_walk_consumers.py",
    "tests/topology/test_walk_delayed.py",
    "tests/topology/test_walk_ends.py",
    "tests/topology/test_walk_laws.py",
    "tests/topology/test_walk_forwarders.py",
)


@dataclass(frozen=True)
class Module:
    """A file or a folder, and what pytest is asked for: the fast tests that prove it."""

    path: str
    tests: Sequence[str]
    # Import the tests for each mutant anew: for what is called when they are imported.
    is_imported_anew: bool = False
    # Run pytest for each mutant: for what another process runs, such as Spark's.
    is_run_elsewhere: bool = False

    @property
    def folder(self) -> Path:
        return WORK / self.path.removesuffix(".py").replace("/", ".")


REPLAYS = (
    "tests/delayboard/test_replay.py",
    "tests/delayboard/test_replay_breaks.py",
    "tests/delayboard/test_replay_course.py",
)
MODULES = (
    Module(
        "topology/definitions.py",
        (
            "tests/topology/test_definitions.py",
            "tests/topology/test_probe_routes.py",
            "tests/topology/test_plan.py",
            "tests/topology/test_retry_pair.py",
            "tests/topology/test_retry_ladder.py",
            "tests/topology/test_teardown.py",
            *WALKS,
        ),
    ),
    Module(
        "topology/routing",
        (
            "tests/topology/structure/test_feeds.py",
            "tests/topology/test_cycle.py",
            "tests/topology/test_loop_keys.py",
            "tests/topology/test_match.py",
            "tests/topology/test_remaining.py",
            *WALKS,
        ),
    ),
    Module(
        "topology/patterns/delay_levels/pattern.py",
        (
            "tests/topology/test_delay_levels.py",
            "tests/topology/test_patterns.py",
            "-k",
            "delay_levels",
        ),
    ),
    Module(
        "topology/transfer/move.py",
        ("tests/topology/test_move.py", "tests/topology/test_queue_source.py"),
    ),
    Module("topology/access.py", ("tests/topology/test_access.py",), is_imported_anew=True),
    Module("delayboard/dead_letters/replay/parked_source.py", REPLAYS),
    Module(
        "delayboard/dead_letters/parked/store.py",
        (
            "tests/delayboard/test_groups.py",
            "tests/delayboard/test_parked_message_transfer.py",
            "tests/delayboard/test_merge_groups.py",
            "tests/delayboard/test_park_discard.py",
        ),
    ),
    Module(
        "analytics/scheduled/projection.py",
        (
            "tests/analytics/test_follow.py",
            "tests/analytics/test_scheduled.py",
            "tests/analytics/test_scheduled_command.py",
            "tests/analytics/test_scheduled_counts.py",
            "tests/analytics/test_scheduled_page.py",
            "tests/analytics/test_scheduled_standing.py",
            "tests/analytics/test_stuck.py",
        ),
    ),
    Module(
        "analytics/jobs/tables/accuracy.py",
        ("tests/analytics/test_jobs.py",),
        is_run_elsewhere=True,
    ),
)


@dataclass(frozen=True)
class Result:
    """What became of the mutants of a module."""

    module: Module
    exit_codes: dict[str, int]

    @property
    def survivors(self) -> list[str]:
        return sorted(
            name for name, code in self.exit_codes.items() if code not in FAILED | ENDLESS
        )

    @property
    def line(self) -> str:
        number, survived = len(self.exit_codes), len(self.survivors)
        endless = sum(code in ENDLESS for code in self.exit_codes.values())
        score = 100 * (number - survived) / number
        figures = f"{number:8}{number - survived:8}{endless:9}{survived:10}{score:7.1f}%"
        return f"{self.module.path:42}{figures}"


def main() -> int:
    """Run the modules that were asked for, or all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--sample", type=int, default=150, help="at most so many of each module")
    asked = parser.parse_args()
    known = [module.path for module in MODULES]
    if unknown := set(asked.modules) - set(known):
        parser.error(f"{', '.join(unknown)}: MODULE is one of\n  " + "\n  ".join(known))
    chosen = [module for module in MODULES if not asked.modules or module.path in asked.modules]
    results = [run(module, asked.sample) for module in chosen]
    head = f"{'mutants':>8}{'killed':>8}{'endless':>9}{'survived':>10}{'score':>8}"
    print(f"{'module':42}{head}")
    print(*(result.line for result in results), sep="\n")
    print(f"Survivors: {WORK.relative_to(ROOT)}/*/survivors.txt")
    return 0


def run(module: Module, at_most: int) -> Result:
    """Mutate the module in a copy of the project. Raises CalledProcessError."""
    shutil.rmtree(module.folder, ignore_errors=True)
    module.folder.mkdir(parents=True)
    for name in (*SOURCES, *BESIDE):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, module.folder / name)
    for file in files(module):
        file.write_text(undecorated(file.read_text()))
    (module.folder / "pyproject.toml").write_text(configuration(module))
    names = sample(module, at_most)
    result = Result(module, (run_elsewhere if module.is_run_elsewhere else run_here)(module, names))
    survivors = (python(module.folder, MUTMUT, "show", name) for name in result.survivors)
    (module.folder / "survivors.txt").write_text("\n".join(survivors))
    return result


def run_here(module: Module, names: Sequence[str]) -> dict[str, int]:
    """Return the exit code of each mutant, run by mutmut. Raises CalledProcessError."""
    python(module.folder, MUTMUT, "run", *names)
    found: dict[str, int] = {}
    for file in (module.folder / "mutants").rglob("*.meta"):
        found |= json.loads(file.read_text())["exit_code_by_key"]
    return {name: found[name] for name in names}


def run_elsewhere(module: Module, names: Sequence[str]) -> dict[str, int]:
    """The same, where mutmut sees no test that calls the module: it only writes the mutants."""
    command = [sys.executable, "-c", MUTMUT, "run", *names]
    subprocess.run(command, cwd=module.folder, env=variables(module.folder), capture_output=True)
    codes = {}
    for name in ("", *names):
        command = [sys.executable, "-m", "pytest", "-x", "-q", *module.tests]
        codes[name] = subprocess.run(
            command,
            cwd=module.folder / "mutants",
            env={**variables(module.folder), "MUTANT_UNDER_TEST": name},
            capture_output=True,
        ).returncode
    assert codes.pop("") == 0, f"the tests of {module.path} fail without a mutant"
    return codes


def files(module: Module) -> list[Path]:
    """Return the copies of the module's files."""
    path = module.folder / module.path
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def undecorated(source: str) -> str:
    """Write decorators as calls below their functions: mutmut skips what is decorated."""
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda node: node.lineno, reverse=True):
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        if not decorators or MUTATED & set(decorators):
            continue
        applied = node.name
        for decorator in reversed(decorators):
            # What was kept before the mutation would hide it.
            if decorator.split("(")[0] in {"cache", "lru_cache"}:
                continue
            applied = f"{decorator}({applied})"
        lines.insert(node.end_lineno or 0, f"{' ' * node.col_offset}{node.name} = {applied}")
        del lines[node.decorator_list[0].lineno - 1 : node.lineno - 1]
    return "\n".join(lines) + "\n"


def configuration(module: Module) -> str:
    """Return the project's configuration with mutmut's."""
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert "mutmut" not in tomllib.loads(pyproject)["tool"]
    settings = {
        "source_paths": SOURCES,
        "only_mutate": [module.path + ("/*" if (ROOT / module.path).is_dir() else "")],
        "also_copy": BESIDE,
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "--nomigrations"],
        # Seconds: what a test took, and to start; times the multiplier.
        "timeout_constant": 5.0,
        "timeout_multiplier": 5.0,
        "pytest_add_cli_args_test_selection": list(module.tests),
    }
    if module.is_imported_anew:
        settings |= {"process_isolation": "forkserver", "forkserver_warmup": "none"}
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    return f"{pyproject}\n[tool.mutmut]\n{''.join(lines)}"


def sample(module: Module, at_most: int) -> list[str]:
    """Return the names of the module's mutants, at most so many of them."""
    paths = [str(file.relative_to(module.folder)) for file in files(module)]
    names = sorted(python(module.folder, NAMES, *paths).split())
    return sorted(random.Random(SEED).sample(names, min(at_most, len(names))))


def variables(folder: Path) -> dict[str, str]:
    """With CI hypothesis draws the same examples each time and keeps none for other mutants."""
    return {**os.environ, "CI": "true", "DELAYBOARD_VAR": str(folder / "var")}


def python(folder: Path, script: str, *arguments: str) -> str:
    """Run a script in the folder and return what it printed. Raises CalledProcessError."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=variables(folder), capture_output=True, text=True
    )
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
        done.check_returncode()
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
