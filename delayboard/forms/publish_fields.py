"""The fields of the publish form."""

from __future__ import annotations

from datetime import timedelta

from django import forms

from delayboard.forms.header_rows import HeaderRowsField
from delayboard.publishing.body import FORMATS
from delayboard.publishing.publish_job import HIGHEST_RATE, MOST_MESSAGES
from topology.content.text import count_text
from topology.delays import format_delay
from topology.forms.fields import DelayField, MomentField
from topology.models import Topology


class TopologyChoice(forms.ModelChoiceField):  # type: ignore[type-arg]
    """Names are unique on one broker only, so each choice contains the broker."""

    def label_from_instance(self, obj: Topology) -> str:
        offered = [delay for delay in obj.pattern.delays(obj.parsed) if delay]
        few = ", ".join(format_delay(delay) for delay in offered[:3])
        kind = obj.pattern.EXPLANATION.title.lower()
        return f"{obj.name} on {obj.broker.name}: {kind}" + (f", {few}" if offered else "")


class PublishFields(forms.Form):
    """What an operator types about a message; `mode` decides which fields are used."""

    publication_id = forms.UUIDField(widget=forms.HiddenInput, required=False)
    topology = TopologyChoice(
        Topology.objects.none(),
        to_field_name="slug",
        required=False,
        empty_label="Select a topology",
        help_text="The topology sets the exchange, routing key and delay.",
    )
    mode = forms.ChoiceField(
        required=False,
        label="Publish through",
        choices=(("topology", "A topology"), ("exchange", "An exchange or queue")),
        widget=forms.RadioSelect,
    )
    delay = DelayField(
        nothing=timedelta(0),
        help_text="Empty: no delay.",
        widget=forms.TextInput(attrs={"list": "delays"}),
    )
    due_at = MomentField(
        required=False,
        label="Due time",
        help_text="A time instead of a delay.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}),
    )
    target = forms.CharField(
        required=False,
        max_length=255,
        help_text="Destination or routing key, if the topology needs one.",
        widget=forms.TextInput(attrs={"class": "name", "list": "targets"}),
    )
    exchange = forms.CharField(
        required=False,
        max_length=255,
        help_text="Empty: default exchange, which routes to the queue named by the routing key.",
        widget=forms.TextInput(attrs={"list": "exchanges"}),
    )
    routing_key = forms.CharField(
        required=False, max_length=255, widget=forms.TextInput(attrs={"list": "routing-keys"})
    )
    body_format = forms.ChoiceField(
        required=False, choices=FORMATS, initial="text", widget=forms.RadioSelect
    )
    body = forms.CharField(
        required=False, strip=False, widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"})
    )
    content_type = forms.CharField(required=False, max_length=255, initial="text/plain")
    headers = HeaderRowsField(required=False)
    persistent = forms.BooleanField(required=False, initial=True)
    priority = forms.IntegerField(required=False, min_value=0, max_value=255)
    expiration = DelayField(help_text="Empty: no TTL.")
    content_encoding = forms.CharField(required=False, max_length=255)
    correlation_id = forms.CharField(required=False, max_length=255)
    message_id = forms.CharField(
        required=False, max_length=255, help_text="Empty: Delayboard creates an id."
    )
    reply_to = forms.CharField(required=False, max_length=255)
    type = forms.CharField(required=False, max_length=255)
    app_id = forms.CharField(required=False, max_length=255)
    count = forms.IntegerField(
        required=False,
        label="Number of messages",
        min_value=1,
        max_value=MOST_MESSAGES,
        help_text=f"At most {count_text(MOST_MESSAGES)}.",
    )
    rate = forms.FloatField(
        required=False,
        label="Messages per second",
        min_value=1,
        max_value=HIGHEST_RATE,
        help_text=f"1 to {count_text(HIGHEST_RATE)}.",
    )
