"""The page for a sign-in that comes after too many failures."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from topology.audit import client_address


def answer(
    request: HttpRequest, response: HttpResponse | None, credentials: Mapping[str, Any] | None
) -> HttpResponse:
    """AXES_LOCKOUT_CALLABLE: status 429 with the moment of the next try."""
    retry_at = AxesProxyHandler.get_implementation().retry_at(request, credentials)
    seconds = max(1, ceil((retry_at - timezone.now()).total_seconds()))
    context = {
        "retry_at": retry_at,
        "minutes": ceil(seconds / 60),
        "address": client_address(request),
    }
    page = render(request, "registration/locked.html", context, status=429)
    page["Retry-After"] = str(seconds)
    return page
