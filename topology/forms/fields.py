"""Fields that several forms have: a broker, a duration, headers as JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django import forms
from django.db.models import QuerySet

from topology.broker.properties.field_values import FieldError, write_table
from topology.delays import DelayError, parse_delay
from topology.models import Broker

LONGEST_DELAY = 40


class HeadersField(forms.CharField):
    """A JSON object that AMQP can carry; its values keep their JSON types as AMQP types."""

    widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})

    def clean(self, value: Any) -> dict[str, Any]:
        text = super().clean(value).strip()
        if not text:
            return {}
        try:
            read = json.loads(text)
        except RecursionError as error:
            raise forms.ValidationError("The headers are nested too deep.") from error
        except ValueError as error:
            raise forms.ValidationError(
                f"The headers are not JSON: {error}. Write them like {{“tenant”: 42}}."
            ) from error
        if not isinstance(read, dict):
            raise forms.ValidationError("The headers must be a JSON object, like {“tenant”: 42}.")
        try:
            write_table(read)
        except FieldError as error:
            raise forms.ValidationError(str(error)) from error
        return read


class DelayField(forms.Field):
    """A duration such as 90s or 1h 30m, or `nothing` when empty."""

    def __init__(self, *, nothing: timedelta | None = None, **options: Any) -> None:
        super().__init__(required=False, **options)
        self._nothing = nothing

    def to_python(self, value: Any) -> timedelta | None:
        text = (value or "").strip()
        if not text:
            return self._nothing
        if len(text) > LONGEST_DELAY:
            raise forms.ValidationError(
                "This is not a duration. Enter a duration such as 90s or 1h 30m."
            )
        try:
            return parse_delay(text)
        except DelayError as error:
            raise forms.ValidationError(str(error)) from error


class BrokerChoice(forms.ModelChoiceField):
    """A broker, by its slug as in addresses; of several none is chosen beforehand."""

    def __init__(self, queryset: QuerySet[Broker], **options: Any) -> None:
        options.setdefault("empty_label", None if queryset.count() == 1 else "select a broker")
        super().__init__(queryset, to_field_name="slug", **options)

    def label_from_instance(self, obj: Broker) -> str:
        return f"{obj.name} ({obj.environment})"
