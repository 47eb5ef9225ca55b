"""docs/clients.md names each library of the table and what a replay resets of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from topology.clients.conventions import Convention, built_in

DOCUMENT = (Path(__file__).parents[3] / "docs" / "clients.md").read_text()


@pytest.mark.parametrize("library", built_in(), ids=lambda one: one.name)
def test_each_library_has_a_row_with_its_counters(library: Convention) -> None:
    (row,) = (
        line
        for line in DOCUMENT.partition("## What libraries write")[2].splitlines()
        if line.startswith(f"| {library.name} |")
    )
    for pointer in (*library.restart.remove, *library.restart.zero):
        name = ".".join(step.rpartition("\\")[2] for step in pointer[1:])
        assert f"{'body: ' if pointer[0] == 'body' else ''}{name}`" in row
