"""How templates write sentences that hold names from a broker."""

from __future__ import annotations

from django import template
from django.utils.safestring import SafeData, SafeString

from topology.content.text import isolate_names as isolate
from topology.content.text import visible as made_visible
from topology.graph.svg import attribute as escape_attribute

register = template.Library()


@register.filter
def isolate_names(value: object) -> object:
    """A sentence whose names cannot garble it; markup, and what is no text, as it is."""
    return isolate(value) if isinstance(value, str) and not isinstance(value, SafeData) else value


@register.filter
def visible(value: object) -> str:
    """What a message holds, line by line, with signs to see for controls and direction marks."""
    return "\n".join(made_visible(line) for line in str(value).split("\n"))


@register.filter
def attribute(value: object) -> SafeString:
    """A text inside the double quotes of an SVG, with references for control characters."""
    return SafeString(escape_attribute(str(value)))
