"""README.md and docs name each page, command and setting that exists, and none that is gone."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands
from django.urls import URLPattern, URLResolver, get_resolver

from delayboard.checks import unknown_names
from tests.browser.guide import PICTURES

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = (GUIDE / "reference.md").read_text()
SOURCES = [
    file for top in ("analytics", "delayboard", "topology") for file in (ROOT / top).rglob("*.py")
]
# Not for operators: of the machine, of `make run`, of a child process, of a developer.
NOT_SETTINGS = {"PATH", "PYTHONPATH", "BROKER", "MANAGEMENT", "DEBUG"}
READS = (
    r"environ\.get$"
    r"|^(?:choice|is_enabled|networks|positive_number|storage|texts|time_zone|whole_number|_cron)$"
)
LARGEST_PICTURES = 2_000_000


def accepted_methods(view: Any) -> set[str]:
    """The methods that a decorator of the view demands; without one, both."""
    while view is not None:
        if inspect.isfunction(view):
            methods = inspect.getclosurevars(view).nonlocals.get("request_method_list")
            if methods:
                return set(methods)
        view = getattr(view, "__wrapped__", None)
    return {"GET", "POST"}


def page_addresses(patterns: Sequence[URLPattern | URLResolver], start: str = "/") -> Iterator[str]:
    """The addresses that answer GET, with capitals for what varies; without Django's admin."""
    for pattern in patterns:
        address = start + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            if pattern.namespace != "admin":
                yield from page_addresses(pattern.url_patterns, address)
        elif "GET" in accepted_methods(pattern.callback) and not address.startswith("/admin/"):
            yield re.sub(r"<(\w+):(\w+)>", _capitals, address)


def _capitals(found: re.Match[str]) -> str:
    _, name = found.groups()
    names = {"pk": "ID", "broker_slug": "BROKER", "slug": "TOPOLOGY"}
    return names.get(name, name.upper())


def settings_read() -> set[str]:
    """Names of environment variables that the source reads, and of the retention rules."""
    names = set[str]()
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            found: Sequence[ast.expr] = ()
            if isinstance(node, ast.Constant) and str(node.value).startswith("KEEP_"):
                found = [node]
            elif isinstance(node, ast.Call) and re.search(READS, ast.unparse(node.func)):
                found = node.args[:1]
            names |= {str(one.value) for one in found if isinstance(one, ast.Constant)}
    return names - NOT_SETTINGS


def text_of_documents() -> str:
    return "\n".join(document.read_text() for document in DOCUMENTS)


def test_the_reference_has_each_page_and_no_other() -> None:
    documented = re.findall(r"^\| `(/\S*)` \|", REFERENCE, re.MULTILINE)
    pages = set(page_addresses(get_resolver().url_patterns))
    assert (pages - set(documented), set(documented) - pages) == (set(), set())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_no_document_has_a_command_that_is_gone(document: Path) -> None:
    named = set(re.findall(r"manage\.py ([a-z]\w+)", document.read_text()))
    assert named - set(get_commands()) == set()


def test_the_settings_that_are_read_are_documented() -> None:
    assert {name for name in settings_read() if f"`{name}`" not in text_of_documents()} == set()


def test_the_settings_that_are_read_are_known_to_the_check_of_names() -> None:
    assert unknown_names(settings_read() | NOT_SETTINGS) == []


def test_the_documented_settings_are_read() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    table = text.partition("\n## Settings")[2].partition("\n## ")[0]
    names = re.findall(
        r"`([A-Z][A-Z_]+)`", "".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE))
    )
    assert set(names) - settings_read() == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_each_link_of_a_document_leads_to_a_file(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


def test_the_guide_shows_each_picture_and_has_each_that_it_shows() -> None:
    shown = set(re.findall(r"pictures/([\w.-]+\.webp)", text_of_documents()))
    kept = {file.name for file in (GUIDE / "pictures").iterdir()}
    assert (
        shown
        == kept
        == {f"{name}.webp" for of_test in PICTURES.values() for name in of_test.values()}
    )
    assert sum(file.stat().st_size for file in (GUIDE / "pictures").iterdir()) < LARGEST_PICTURES


def test_the_guide_names_only_labels_that_pages_have() -> None:
    """What is bold and begins with a capital is a label."""
    pages = [*(ROOT / "templates").rglob("*.html"), *SOURCES]
    shown = " ".join(" ".join(file.read_text().split()) for file in pages)
    named = {
        (file.name, label)
        for file in GUIDE.glob("*.md")
        for label in re.findall(r"\*\*([A-Z][^*]+)\*\*", " ".join(file.read_text().split()))
    }
    assert {(name, label) for name, label in named if label not in shown} == set()


def test_the_index_of_the_guide_has_each_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (GUIDE / "README.md").read_text()))
    assert linked == {file.name for file in GUIDE.glob("*.md")} - {"README.md"}
