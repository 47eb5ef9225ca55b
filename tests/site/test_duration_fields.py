"""Every field and option for a duration or a time says which forms it takes."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints

import pytest
from django import forms
from django.core.management import load_command_class
from django.utils import timezone

from delayboard.forms.publish import PublishForm
from topology.delays import DURATION_HELP, EXAMPLES, MOMENT_HELP
from topology.forms.fields import DelayField, MomentField
from topology.patterns.table import PATTERNS

OF_DURATIONS = {
    "publish": {"delay", "expiration", "wait"},
    "replay_dead_letters": {"delay"},
}
OF_TIMES = {"publish": {"due_at"}, "scheduled": {"from", "until", "to"}}
SHORTEST_EXAMPLES = EXAMPLES.split(" or ")[0].rsplit(",", 1)[0]


def helps(command: str) -> dict[str, Any]:
    parser = load_command_class("delayboard", command).create_parser("manage.py", command)
    return {action.dest: str(action.help) for action in parser._actions}


def test_options_of_commands_state_their_forms() -> None:
    for stated, options in ((DURATION_HELP, OF_DURATIONS), (MOMENT_HELP, OF_TIMES)):
        for command, names in options.items():
            known = helps(command)
            assert {name for name in names if stated in known[name]} == names


def test_fields_of_forms_state_their_forms() -> None:
    found = {
        name: field
        for name, field in PublishForm.base_fields.items()
        if isinstance(field, DelayField)
    }
    assert set(found) == {"delay", "expiration"}
    assert all(DURATION_HELP in field.help_text for field in found.values())


@pytest.mark.parametrize("kind", PATTERNS)
def test_parameters_of_patterns_state_their_forms(kind: str) -> None:
    pattern = PATTERNS[kind]
    types = get_type_hints(type(pattern.EXAMPLE))
    durations = {
        one.name
        for one in fields(pattern.EXAMPLE)
        if types[one.name] in (timedelta, tuple[timedelta, ...])
    }
    texts = {field.name: field.help for field in pattern.FIELDS}
    assert all(SHORTEST_EXAMPLES in texts[name] for name in durations & texts.keys())


def test_a_time_of_a_form_is_relative_or_in_the_zone_of_the_user() -> None:
    field, before = MomentField(), timezone.now()
    assert timedelta(0) <= field.clean("in 2 hours") - before - timedelta(hours=2) < timedelta(1)
    with timezone.override("Europe/Berlin"):
        for text in ("2026-11-24T15:30", "2026-11-24 15:30:00"):
            assert field.clean(text) == datetime(2026, 11, 24, 14, 30, tzinfo=UTC)
    for text in ("soon", "+2", "in 5", "-9999999w"):
        with pytest.raises(forms.ValidationError, match=r"Enter a time such as \+2h, in 2 hours"):
            field.clean(text)
