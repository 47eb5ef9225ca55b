"""The address and the account of a broker."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django import forms

from topology.broker.address import AddressError, check_management_url
from topology.models import Broker

# Whoever may change these must know the password: it is sent to where they point.
WHERE_THE_PASSWORD_GOES = (
    "host",
    "port",
    "management_url",
    "tls",
    "verify_tls",
    "ca_certificate",
)


def check_host(host: str) -> None:
    """Raises ValidationError unless it is an IP address or could be a host's name."""
    try:
        ip_address(host)
    except ValueError:
        pass
    else:
        return
    # The codec lets these pass.
    if not host or not host.isprintable() or any(character.isspace() for character in host):
        raise forms.ValidationError("A host name cannot contain blanks or control characters.")
    try:
        host.encode("idna")
    except UnicodeError as error:
        sentence = "This host name is not valid. Its parts have 1 to 63 bytes each."
        raise forms.ValidationError(sentence) from error


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
            "is_read_only",
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
            "environment": "Shown on every page of this broker, for example staging.",
            "is_production": "Publishing, discarding and deleting then require the broker name.",
            "management_url": "URL of the management API, for example http://host:15672",
            "is_read_only": "Delayboard changes no message and no object of this broker.",
            "vhost": "Add a broker once for each virtual host.",
            "tls": "AMQP over TLS (amqps). For the management API, enter an https URL.",
            "verify_tls": "Reject untrusted certificates.",
            "ca_certificate": "PEM text of the CA. Empty: the certificates of the system.",
        }
        labels: ClassVar[dict[str, str]] = {
            "host": "AMQP host",
            "port": "AMQP port",
            "vhost": "Virtual host",
            "management_url": "Management address",
            "tls": "TLS",
            "verify_tls": "Verify certificate",
            "ca_certificate": "CA certificate",
            "is_production": "Production broker",
            "is_read_only": "Read-only",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.fields["password"].help_text = "Leave empty to use the stored password."

    def clean_host(self) -> str:
        host: str = self.cleaned_data["host"]
        check_host(host)
        return host

    def clean_management_url(self) -> str:
        url: str = self.cleaned_data["management_url"].rstrip("/")
        # `urlsplit` drops line ends and tabs unseen.
        if not url.isprintable():
            raise forms.ValidationError("The management address contains control characters.")
        try:
            check_management_url(url)
        except AddressError as error:
            raise forms.ValidationError(str(error)) from error
        check_host(urlsplit(url).hostname or "")
        return url

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.instance.pk and not cleaned.get("password"):
            self.add_error("password", "The password is missing.")
        elif not cleaned.get("password") and self._leads_elsewhere(cleaned):
            self.add_error(
                "password",
                "The address changed. Type the password again, so that Delayboard does not "
                "send it to another server.",
            )
        return cleaned

    def _leads_elsewhere(self, cleaned: dict[str, Any]) -> bool:
        """Compares words: browsers send other line ends than a certificate was stored with."""
        return any(
            str(cleaned[name]).split() != str(getattr(self.instance, name)).split()
            for name in WHERE_THE_PASSWORD_GOES
            if name in cleaned
        )
