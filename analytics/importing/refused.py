"""The one error of an import that cannot be done."""

from __future__ import annotations


class Refused(Exception):
    """Nothing was imported; the message says why in one sentence."""
