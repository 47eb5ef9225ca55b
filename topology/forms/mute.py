"""Why a finding is muted, and until when."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from django import forms
from django.utils import timezone

USUAL_MUTE = timedelta(days=7)
LONGEST_MUTE = timedelta(days=366)


class MuteForm(forms.Form):
    """Why a finding is not counted, and until when: `until` becomes the end of that day, UTC."""

    reason = forms.CharField(max_length=300, help_text="For example a ticket or the owner.")
    until = forms.DateField(
        label="Last day (UTC)",
        help_text="The finding counts again after this day.",
        initial=lambda: timezone.now().date() + USUAL_MUTE,
        widget=forms.DateInput(attrs={"type": "date"}),
    )

    def clean_until(self) -> datetime:
        last: date = self.cleaned_data["until"]
        today = timezone.now().date()
        if last < today:
            raise forms.ValidationError("This day is in the past. Select a later day.")
        if last > today + LONGEST_MUTE:
            raise forms.ValidationError("A mute lasts a year at most. Select an earlier day.")
        return datetime.combine(last + timedelta(days=1), time.min, UTC)
