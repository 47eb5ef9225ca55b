"""docs/commands.md is what the parsers of the commands have.

`WRITE_COMMANDS=1` in the environment writes it.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import BaseCommand, get_commands, load_command_class

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "commands.md"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN = ("analytics", "delayboard", "topology")
HEAD = """# Commands

This page is made from the parsers by `tests/site/test_command_reference.py`; do not edit it.
`manage.py COMMAND --help` prints the same. Exit codes:
[reference](guide/reference.md#exit-codes).

| command | effect |
|---|---|
"""


def own_commands() -> dict[str, BaseCommand]:
    """Our commands by name, without those of Django and of packages."""
    return {
        name: load_command_class(app, name)
        for name, app in sorted(get_commands().items())
        if app in OWN
    }


def parser_of(name: str) -> argparse.ArgumentParser:
    """That of one of our commands."""
    return own_commands()[name].create_parser("manage.py", name)


def with_subparsers(
    parser: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its subcommands, by what is typed."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, sub in action.choices.items():
                yield from with_subparsers(sub, f"{name} {word}")


def describe(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """How each argument of it is typed, and its help; without those of every command of Django."""
    of_django = {action.dest for action in BaseCommand().create_parser("", "")._actions}
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.dest in of_django or isinstance(action, argparse._SubParsersAction):
            continue
        default = action.dest.upper() if action.option_strings else action.dest
        value = formatter._format_args(action, default)
        names = ", ".join(action.option_strings)
        typed = f"{names} {value}".strip() if action.option_strings else value
        text = formatter._expand_help(action) if action.help else ""
        yield typed, f"{text}; required" if action.option_strings and action.required else text


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".")


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def make_page() -> str:
    commands = own_commands()
    lines = [
        f"| [`manage.py {name}`](#{name}) | {cell(first_sentence(command.help))} |"
        for name, command in commands.items()
    ]
    page = HEAD + "\n".join(lines) + "\n"
    for name in commands:
        for typed, parser in with_subparsers(parser_of(name), name):
            page += f"\n{'##' if typed == name else '###'} {typed}\n"
            if parser.description:
                page += f"{' '.join(parser.description.split())}\n"
            if rows := list(describe(parser)):
                page += "\n| argument | meaning |\n|---|---|\n"
                page += "".join(f"| `{cell(left)}` | {cell(right)} |\n" for left, right in rows)
    return page


def flags_of(name: str) -> set[str]:
    return {
        flag
        for _, parser in with_subparsers(parser_of(name), name)
        for action in parser._actions
        for flag in action.option_strings
    }


def test_the_page_of_commands_is_what_the_parsers_have() -> None:
    made = make_page()
    if os.environ.get("WRITE_COMMANDS"):
        PAGE.write_text(made)
    assert PAGE.read_text() == made, "Run it with WRITE_COMMANDS=1, and commit docs/commands.md."


def test_each_argument_of_each_command_has_a_help() -> None:
    without = {
        (name, left)
        for name in own_commands()
        for typed, parser in with_subparsers(parser_of(name), name)
        for left, right in describe(parser)
        if not right
    }
    assert without == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_examples_use_only_options_that_their_command_has(document: Path) -> None:
    """What follows `manage.py COMMAND` in the same line, or in the same code."""
    wrong = set()
    for line in document.read_text().splitlines():
        for name, rest in re.findall(r"manage\.py ([a-z_]+)([^`#|]*)", line):
            if name in own_commands():
                used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest))
                wrong |= {(name, flag) for flag in used - flags_of(name)}
    assert wrong == set()
