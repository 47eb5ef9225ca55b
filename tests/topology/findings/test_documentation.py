from __future__ import annotations

from pathlib import Path

import pytest

from topology.findings.find import LIVE_RULES, RULES
from topology.findings.finding import Rule

DOCUMENT = Path(__file__).parents[3] / "docs" / "findings.md"


@pytest.mark.parametrize("rule", [*RULES, *LIVE_RULES], ids=lambda rule: rule.id)
def test_the_documentation_has_a_row_for_each_rule(rule: Rule) -> None:
    cells = (rule.id, rule.severity.label, rule.title, rule.explanation, rule.remedy)
    assert f"| {' | '.join(cells)} |" in DOCUMENT.read_text().splitlines()


def test_the_documentation_has_no_row_besides() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(("| F", "| L"))]
    assert len(rows) == len(RULES) + len(LIVE_RULES)
