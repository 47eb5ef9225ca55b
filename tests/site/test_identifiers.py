"""Names in code, templates, scripts and style sheets use none of the words of NEVER."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("analytics", "delayboard", "topology", "templates")
# Words that name no part of this product; the glossary of ARCHITECTURE.md has those that do.
NEVER = re.compile(
    r"things?|tells?|told|says?|stands|standing|ways?|wish(es)?|soon|(un)?seeing|unseen|keeping"
    r"|lacking|gone|mends?|rings?|stars?|inks?|pictures?|dut(y|ies)|journals?",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
HOOK = re.compile(r'(?:class|id|data-[\w-]+)="([^"]*)"|\{% block (\w+)')
SCRIPT = re.compile(r"\b(?:function|const|let|class) (\w+)")
STYLE = re.compile(r"[.#]([A-Za-z][\w-]*)")


def names_of(path: Path) -> Iterator[str]:
    """The names that a file defines, and its own."""
    text = path.read_text()
    yield path.stem
    match path.suffix:
        case ".py":
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                        yield name
                    case ast.Name(id=name, ctx=ast.Store()):
                        yield name
                    case ast.Attribute(attr=name, ctx=ast.Store()):
                        yield name
        case ".html":
            yield from (match[1] or match[2] for match in HOOK.finditer(text))
        case ".js":
            yield from SCRIPT.findall(text)
        case ".css":
            yield from STYLE.findall(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_uses_a_word_that_is_never_used(folder: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".html", ".js", ".css") and "migrations" not in path.parts
        for name in names_of(path)
        if any(map(NEVER.fullmatch, WORD.findall(re.sub(r"\{.*?\}+", "", name))))
    }
    assert not wrong


@pytest.mark.parametrize("folder", ["analytics", "delayboard", "topology"])
def test_a_constant_has_one_value(folder: str) -> None:
    """A second one would change what stands between both, as when two modules become one."""
    twice = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        names = Counter(
            node.id
            for statement in ast.parse(path.read_text()).body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            for node in ast.walk(target)
            if isinstance(node, ast.Name)
        )
        twice += [f"{path.relative_to(ROOT)}: {name}" for name, n in names.items() if n > 1]
    assert not twice
