"""The system of the look: templates use its classes only, and it has none that nobody uses."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STYLES = ROOT / "delayboard/static/delayboard"
# Classes of other packages: Django's forms, and what a script of ours only looks for.
FOREIGN = {"errorlist", "helptext", "nonfield"}
CLASSES = re.compile(r'class="((?:\{%.*?%\}|\{\{.*?\}\}|[^"{])*)"', re.DOTALL)
TAG = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)


def defined() -> set[str]:
    """The classes that the style sheets have rules for."""
    found = set()
    for path in STYLES.glob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for selectors in re.findall(r"([^{}]*)\{", text):
            found |= set(re.findall(r"\.([a-z][\w-]*)", selectors))
    return found


def used_in(text: str) -> tuple[set[str], set[str]]:
    """The classes of a template, and the beginnings of those that a tag may continue."""
    words, beginnings = set[str](), set[str]()
    for attribute in CLASSES.findall(text):
        for word in TAG.sub("\0", attribute).split():
            beginning, *others = word.split("\0")
            if not others:
                words.add(word)
            elif beginning:
                beginnings.add(beginning)
            else:
                words |= set(others)
    return words - {""}, beginnings


def starts_any(beginning: str, names: set[str]) -> bool:
    return any(name.startswith(beginning) for name in names)


def templates() -> list[Path]:
    return sorted((ROOT / "templates").rglob("*.html"))


def test_templates_use_only_classes_of_the_system() -> None:
    known = defined() | FOREIGN
    wrong = []
    for path in templates():
        words, beginnings = used_in(path.read_text())
        wrong += [f"{path.name}: {word}" for word in sorted(words - known)]
        wrong += [
            f"{path.name}: {one}…" for one in sorted(beginnings) if not starts_any(one, known)
        ]
    assert wrong == []


def test_no_class_of_the_system_is_without_use() -> None:
    folders = [ROOT / name for name in ("templates", "delayboard", "topology", "analytics")]
    files = (path for folder in folders for path in folder.rglob("*.*"))
    text = "\n".join(p.read_text() for p in files if p.suffix in (".html", ".py", ".js", ".svg"))
    words = set(re.findall(r"[a-z][\w-]*", text))
    beginnings = re.findall(r"([a-z][\w-]*-)\{", text)
    unused = {
        name
        for name in defined() - words
        if not any(name.startswith(beginning) for beginning in beginnings)
    }
    assert unused == set()


def test_no_page_has_style_sheets_of_its_own() -> None:
    own = [path.name for path in templates() if "stylesheet" in path.read_text()]
    assert own == ["500.html", "base.html"]
