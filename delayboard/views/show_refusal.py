"""Shows on the next page why an action was refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib import messages
from django.http import HttpRequest


@contextmanager
def show_refusal(request: HttpRequest, failure: str, *refusals: type[Exception]) -> Iterator[None]:
    """End the block at one of these, and show its sentence behind `failure`."""
    try:
        yield
    except refusals as error:
        messages.error(request, f"{failure} {error}".strip())
