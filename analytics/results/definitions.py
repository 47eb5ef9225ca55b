"""What each figure of a report means, in one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path

DEFINITIONS: dict[str, str] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
