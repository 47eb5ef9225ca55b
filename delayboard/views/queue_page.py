"""The address of the page of a dead-letter queue."""

from __future__ import annotations

from django.urls import reverse
from django.utils.http import urlencode

from topology.models import Broker


def queue_page(broker: Broker, name: str) -> str:
    page = reverse("dead_letter_queue", args=[broker.slug])
    return f"{page}?{urlencode({'name': name})}"
