"""The page for a sign-in that is refused, with one sentence or two."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def refuse(request: HttpRequest, sentence: str) -> HttpResponse:
    """Status 403: the account, the provider or the proxy must change before the next try."""
    return render(request, "registration/refused.html", {"sentence": sentence}, status=403)
