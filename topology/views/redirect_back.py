"""The address after an action: the page of the request."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.http import url_has_allowed_host_and_scheme


def next_of(request: HttpRequest, otherwise: str) -> str:
    """The posted `next` where it is an address of this site that begins with “/”."""
    url: str = request.POST.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(url, {request.get_host()}, request.is_secure())
    return url if url.startswith("/") and "\x00" not in url and is_ours else otherwise
