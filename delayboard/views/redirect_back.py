"""Where a person goes on after an action: back to the page that it was asked from."""

from __future__ import annotations

from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme, urlencode

from topology.models import Broker


def next_of(request: HttpRequest, otherwise: str) -> str:
    """The posted `next` where it is an address of this site that begins with “/”."""
    url: str = request.POST.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(url, {request.get_host()}, request.is_secure())
    return url if url.startswith("/") and "\x00" not in url and is_ours else otherwise


def queue_page(broker: Broker, name: str) -> str:
    page = reverse("dead_letter_queue", args=[broker.slug])
    return f"{page}?{urlencode({'name': name})}"
