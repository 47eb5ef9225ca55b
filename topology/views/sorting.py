"""The order of a list, in its address: `sort=name`, or `sort=-name` from the end."""

from __future__ import annotations

from collections.abc import Collection

from django.http import HttpRequest


def read_sort(request: HttpRequest, names: Collection[str], default: str) -> str:
    """One of the names, perhaps with "-"; the default for any other text."""
    text = request.GET.get("sort", "")
    return text if text.removeprefix("-") in names else default
