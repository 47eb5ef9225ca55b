"""Fields that several forms have: a broker, a duration, headers as JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils import timezone

from topology.broker.properties.field_values import FieldError, write_table
from topology.delays import DURATION_HELP, EXAMPLES, DelayError, parse_delay, read_shift
from topology.models import Broker

LONGEST_DELAY = 40
_MOMENTS = [f"%Y-%m-%d{parting}%H:%M{rest}" for parting in "T " for rest in (":%S", "")]


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
    """A duration as `parse_delay` reads it, or `nothing` when empty."""

    def __init__(
        self, *, nothing: timedelta | None = None, help_text: str = "", **options: Any
    ) -> None:
        help_text = f"{DURATION_HELP} {help_text}".rstrip()
        super().__init__(required=False, help_text=help_text, **options)
        self._nothing = nothing

    def to_python(self, value: Any) -> timedelta | None:
        text = (value or "").strip()
        if not text:
            return self._nothing
        if len(text) > LONGEST_DELAY:
            raise forms.ValidationError(f"This is not a duration. Enter {EXAMPLES}.")
        try:
            return parse_delay(text)
        except DelayError as error:
            raise forms.ValidationError(str(error)) from error


class MomentField(forms.DateTimeField):
    """A date and time in the person's zone, as browsers send it, or a relative time."""

    def __init__(self, **options: Any) -> None:
        wrong = {"invalid": "Enter a time such as +2h, in 2 hours or 2026-11-21 15:30."}
        super().__init__(input_formats=_MOMENTS, error_messages=wrong, **options)

    def to_python(self, value: Any) -> Any:
        text = value.strip() if isinstance(value, str) else ""
        try:
            shift = read_shift(text) if text else None
            return super().to_python(value) if shift is None else timezone.now() + shift
        except (DelayError, OverflowError) as error:
            raise forms.ValidationError(self.error_messages["invalid"]) from error


class BrokerChoice(forms.ModelChoiceField):
    """A broker, by its slug as in addresses; of several none is chosen beforehand."""

    def __init__(self, queryset: QuerySet[Broker], **options: Any) -> None:
        options.setdefault("empty_label", None if queryset.count() == 1 else "select a broker")
        super().__init__(queryset, to_field_name="slug", **options)

    def label_from_instance(self, obj: Broker) -> str:
        return f"{obj.name} ({obj.environment})"
