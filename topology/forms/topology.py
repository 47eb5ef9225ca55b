"""A topology: its broker and its parameters."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from topology import access, snapshots
from topology.forms.fields import BrokerChoice
from topology.models import Broker, Role
from topology.patterns.pattern import Field, ParamsError
from topology.patterns.table import KINDS


class ParametersForm(forms.Form):
    """The parameters of a topology as its pattern asks for them, and checked by it."""

    def __init__(self, *args: Any, kind: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pattern = KINDS[kind]
        for field in self.pattern.FIELDS:
            self.fields[field.name] = _form_field(field)

    @property
    def common(self) -> list[forms.BoundField]:
        return [field for field in self if field.name not in self._rare]

    @property
    def rare(self) -> list[forms.BoundField]:
        return [self[name] for name in self._rare]

    @property
    def has_rare(self) -> bool:
        """Whether something is typed, or wrong, in a field that is folded away."""
        return any(field.errors or (self.is_bound and field.value()) for field in self.rare)

    @property
    def sometimes_required(self) -> list[str]:
        """The fields whose help says when they may be empty."""
        return [field.name for field in self.pattern.FIELDS if field.required_for]

    @property
    def texts(self) -> dict[str, str]:
        """The parameters of a valid form as they were typed."""
        names = (field.name for field in self.pattern.FIELDS)
        return {name: str(self.cleaned_data.get(name, "")) for name in names}

    @property
    def _rare(self) -> list[str]:
        return [field.name for field in self.pattern.FIELDS if field.rare]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        try:
            cleaned["params"] = self.pattern.parse(self.texts)
        except ParamsError as error:
            for name, problem in error.problems.items():
                self.add_error(name or None, problem)
        return cleaned


class TopologyForm(ParametersForm):
    """A new topology: its broker and its parameters."""

    def __init__(
        self, *args: Any, user: AbstractBaseUser | AnonymousUser, kind: str, **kwargs: Any
    ) -> None:
        super().__init__(*args, kind=kind, **kwargs)
        self.fields["broker"] = BrokerChoice(access.visible_brokers(user, Role.OPERATOR))
        self.order_fields(["broker"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if "params" in cleaned:
            self._check_broker(cleaned["broker"])
        return cleaned

    def _check_broker(self, broker: Broker) -> None:
        """By what is known of it; one that nobody has asked yet refuses when it is applied."""
        known = snapshots.latest(broker.pk)
        if known is None or known.snapshot is None:
            return
        version = known.snapshot.version_tuple
        if wrong := self.pattern.obstacle(version, self.cleaned_data.get("params")):
            self.add_error("broker", wrong)


def _form_field(field: Field) -> forms.Field:
    settings: dict[str, Any] = {
        "label": field.label,
        "help_text": field.help,
        "initial": field.initial,
        "required": field.required,
    }
    name, values = field.only_for
    # form_choices.js hides it for other values, and does not send it.
    only = {"data-only-for": name, "data-only-values": " ".join(values)} if name else {}
    if field.choices:
        choice = forms.Select(attrs=only)
        return forms.ChoiceField(choices=field.choices, widget=choice, **settings)
    widget = forms.TextInput(attrs={"class": "name", **only})
    return forms.CharField(max_length=2000, strip=False, widget=widget, **settings)
