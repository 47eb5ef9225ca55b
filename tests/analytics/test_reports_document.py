from __future__ import annotations

from pathlib import Path

import pytest

from analytics.results.section import DEFINITIONS

TEXT = " ".join(Path("docs/reports.md").read_text().split())


@pytest.mark.parametrize("key", DEFINITIONS)
def test_the_document_has_every_definition_as_the_page_shows_it(key: str) -> None:
    assert DEFINITIONS[key] in TEXT
