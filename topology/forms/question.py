"""A publish to trace."""

from __future__ import annotations

from django import forms

from topology.forms.fields import HeadersField
from topology.routing.trace_route import Question


class QuestionForm(forms.Form):
    """A publish to ask about, by GET: an answer has an address that can be handed on."""

    exchange = forms.CharField(
        required=False,
        max_length=255,
        help_text="Empty: default exchange.",
        widget=forms.TextInput(attrs={"class": "name"}),
    )
    routing_key = forms.CharField(
        required=False,
        max_length=255,
        strip=False,
        widget=forms.TextInput(attrs={"class": "name"}),
    )
    headers = HeadersField(
        required=False,
        help_text="A JSON object. CC, BCC and (before RabbitMQ 4.0) x-death affect the route.",
    )
    expiration = forms.CharField(
        required=False,
        max_length=40,
        help_text="Message TTL in milliseconds. Empty: no TTL.",
        widget=forms.TextInput(attrs={"class": "name", "inputmode": "numeric"}),
    )
    rejecting = forms.CharField(
        required=False,
        label="Rejecting queues",
        max_length=2000,
        help_text="Queues whose consumer always rejects the message, separated by spaces.",
        widget=forms.TextInput(attrs={"class": "name"}),
    )
    without_consumers = forms.BooleanField(
        required=False,
        label="Ignore consumers",
        help_text="If not selected, the path ends at a queue with a consumer.",
    )

    def question(self) -> Question:
        """The question of a valid form."""
        data = self.cleaned_data
        return Question(
            exchange=data["exchange"],
            routing_key=data["routing_key"],
            headers=data["headers"],
            expiration=data["expiration"] or None,
            rejecting=data["rejecting"].split(),
            without_consumers=data["without_consumers"],
        )
