"""How templates write sentences that hold names from a broker."""

from __future__ import annotations

from django import template
from django.utils.safestring import SafeData

from topology.graph.isolate_names import isolate_names as isolate
from topology.graph.layout.geometry import visible as made_visible

register = template.Library()


@register.filter
def isolate_names(value: object) -> object:
    """A sentence whose names cannot garble it; markup, and what is no text, as it is."""
    return isolate(value) if isinstance(value, str) and not isinstance(value, SafeData) else value


@register.filter
def visible(value: object) -> str:
    """What a message holds, line by line, with signs to see for controls and direction marks."""
    return "\n".join(made_visible(line) for line in str(value).split("\n"))
