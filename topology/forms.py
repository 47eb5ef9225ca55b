"""What operators type about brokers and topologies."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from topology import access
from topology.broker.address import AddressError, check_management_url
from topology.models import Broker, Role
from topology.patterns import PATTERNS
from topology.patterns.pattern import ParamsError


class BrokerForm(forms.ModelForm):
    """A broker; on an existing one an empty password keeps the stored one."""

    password = forms.CharField(
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        required=False,
        help_text="Encrypted at rest.",
    )

    class Meta:
        model = Broker
        fields: ClassVar[list[str]] = [
            "name",
            "environment",
            "colour",
            "is_production",
            "host",
            "port",
            "vhost",
            "management_url",
            "username",
            "password",
            "tls",
            "verify_tls",
            "ca_certificate",
        ]
        help_texts: ClassVar[dict[str, str]] = {
            "environment": "Shown on every page of this broker, such as staging.",
            "is_production": "Destructive actions then ask for the object's name.",
            "management_url": "The management API, such as http://host:15672",
            "vhost": "A broker is added once for each of its virtual hosts.",
            "tls": "AMQP over TLS (amqps). The management address says it by https.",
            "verify_tls": "Refuse certificates that are not trusted.",
            "ca_certificate": "PEM text of the authority; empty for the system's own.",
        }
        labels: ClassVar[dict[str, str]] = {
            "host": "AMQP host",
            "port": "AMQP port",
            "vhost": "Virtual host",
            "management_url": "Management address",
            "tls": "TLS",
            "verify_tls": "Verify the certificate",
            "ca_certificate": "CA certificate",
            "is_production": "This is production",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.fields["password"].help_text = "Leave it empty to keep the stored one."

    def clean_management_url(self) -> str:
        url: str = self.cleaned_data["management_url"].rstrip("/")
        try:
            check_management_url(url)
        except AddressError as error:
            raise forms.ValidationError(str(error)) from error
        return url

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.instance.pk and not cleaned.get("password"):
            self.add_error("password", "A password is missing.")
        return cleaned


class TopologyForm(forms.Form):
    """The parameters of a topology, checked by its pattern."""

    broker = forms.ModelChoiceField(Broker.objects.none())
    name = forms.CharField(
        max_length=255,
        help_text="Of the work exchange and queue; the retry side adds “-retry”.",
    )
    delay = forms.CharField(
        initial="5m", help_text="How long a message waits: 90s, 5m, 1h30m or 250ms."
    )
    routing_key = forms.CharField(
        required=False,
        max_length=255,
        help_text="Of both bindings. Empty: the name. Messages with another key are lost.",
    )

    def __init__(
        self, *args: Any, user: AbstractBaseUser | AnonymousUser, kind: str, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.kind = kind
        brokers = access.visible_brokers(user, Role.OPERATOR)
        self.fields["broker"] = forms.ModelChoiceField(brokers, empty_label=None)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        texts = {name: str(cleaned.get(name, "")) for name in ("name", "delay", "routing_key")}
        try:
            cleaned["params"] = PATTERNS[self.kind].parse(texts)
        except ParamsError as error:
            for name, problem in error.problems.items():
                self.add_error(name or None, problem)
        return cleaned
