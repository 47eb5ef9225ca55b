"""The pictures of docs/guide: by a part of the test's name, which sight becomes which picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "guide" / "pictures"
PICTURES: Mapping[str, Mapping[str, str]] = {
    "test_an_operator_walks": {
        "topology-planned": "topology-planned",
        "topology": "topology",
        "prediction": "prediction",
        "publication": "publication",
        "dead-letters": "dead-letters",
        "replay-dry-run": "replay-dry-run",
        "replay-done": "replay-done",
        "live-search": "live-search",
        "publish-copy": "publish-copy",
        "publish-template": "publish-template",
        "publish-job": "publish-job",
        "alerts": "alerts",
    },
    "[normal-": {
        "now": "now",
        "broker": "broker",
        "scheduled": "scheduled",
        "scheduled-change": "scheduled-change",
        "parked-message-group": "group",
        "replay-paused": "replay-paused",
        "reports": "reports",
        "findings-one": "finding",
        "migrate-delays": "migrate",
    },
}


def pictures_of(test: str) -> Mapping[str, str]:
    """The pictures that this test makes: sight -> name of the file without its suffix."""
    return next((names for part, names in PICTURES.items() if part in test), {})
