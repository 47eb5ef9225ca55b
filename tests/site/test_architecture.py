"""ARCHITECTURE.md names only what exists, counts its walks, and explains its words."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:py|toml|js|css|html|md)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[a-z_]\w*)?")
WALK = re.compile(r"^### (\d+)\. (.+): (\d+) files.*\n((?:(?!^##).*\n)*)", re.MULTILINE)
STEP = re.compile(r"^(\d+)\. `([^`]+)` ((?:`[^`]+`(?:, )?)+): \S", re.MULTILINE)
MECHANISMS = STEP.findall(TEXT.partition("\n### The mechanisms")[2].partition("\n### 1.")[0])
MOST_TERMS, MOST_WORDS_OF_A_WALK, MOST_MECHANISMS, WALKS = 40, 10, 10, 10


@cache
def defined_in(file: str) -> frozenset[str]:
    """Functions, classes, methods and constants of a module."""
    names = set[str]()
    for node in ast.parse((ROOT / file).read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                names.add(name)
                for part in node.body:
                    if isinstance(part, ast.FunctionDef):
                        names.add(f"{name}.{part.name}")
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {one.id for one in targets if isinstance(one, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return frozenset(names)


def terms() -> set[str]:
    table = TEXT.partition("\n## Glossary")[2]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)[1:]
    return {term for row in rows for term in row.split(", ")}


def missing_names(steps: list[tuple[str, str, str]]) -> set[str]:
    return {
        f"{file}: {name}"
        for _, file, names in steps
        for name in CODE.findall(names)
        if not (ROOT / file).exists() or name not in defined_in(file)
    }


def test_each_file_that_is_named_exists() -> None:
    named = {one for one in CODE.findall(TEXT) if FILE.fullmatch(one) or one.endswith("/")}
    assert {one for one in named if not (ROOT / one).exists()} == set()


def test_each_name_in_a_row_about_files_is_defined_in_one_of_them() -> None:
    """Of the table "Where is …"."""
    table = TEXT.partition("\n## Where is")[2].partition("\n## ")[0]
    missing = set()
    for line in re.findall(r"^\| .+ \| .+ \|$", table, re.MULTILINE):
        found = CODE.findall(line)
        files = [one for one in found if one.endswith(".py")]
        names = {one for one in found if NAME.fullmatch(one)}
        missing |= {one for one in names if not any(one in defined_in(file) for file in files)}
    assert missing == set()


def test_there_are_ten_walks() -> None:
    numbers = [int(number) for number, *_ in WALK.findall(TEXT)]
    assert numbers == list(range(1, WALKS + 1))


@pytest.mark.parametrize("walk", WALK.findall(TEXT), ids=lambda walk: walk[1])
def test_a_walk_has_as_many_files_as_its_heading_says(walk: tuple[str, str, str, str]) -> None:
    steps = STEP.findall(walk[3])
    assert [int(number) for number, *_ in steps] == list(range(1, int(walk[2]) + 1))
    assert len({file for _, file, _ in steps}) == len(steps)


def test_a_mechanism_stands_once_above_the_walks_and_in_none_of_them() -> None:
    shared = {file for _, file, _ in MECHANISMS}
    assert 0 < len(MECHANISMS) == len(shared) <= MOST_MECHANISMS
    assert missing_names(MECHANISMS) == set()
    assert (
        shared & {file for walk in WALK.findall(TEXT) for _, file, _ in STEP.findall(walk[3])}
        == set()
    )


@pytest.mark.parametrize("walk", WALK.findall(TEXT), ids=lambda walk: walk[1])
def test_each_name_of_a_step_is_defined_in_its_file(walk: tuple[str, str, str, str]) -> None:
    assert missing_names(STEP.findall(walk[3])) == set()


@pytest.mark.parametrize("walk", WALK.findall(TEXT), ids=lambda walk: walk[1])
def test_nobody_needs_more_than_ten_words_for_a_walk(walk: tuple[str, str, str, str]) -> None:
    words = re.search(r"^Words: (.+)\.$", walk[3], re.MULTILINE)
    assert words
    needed = words[1].split(", ")
    assert set(needed) - terms() == set()
    assert len(needed) <= MOST_WORDS_OF_A_WALK


def test_the_glossary_is_short_and_in_order() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", TEXT.partition("\n## Glossary")[2], re.MULTILINE)
    assert rows[1:] == sorted(rows[1:])
    assert len(rows[1:]) <= MOST_TERMS
