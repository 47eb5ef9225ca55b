"""The addresses and the account of a broker."""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django import forms

from topology.broker.address import (
    AddressError,
    default_management_urls,
    format_host_port,
    load_client_certificate,
    parse_address,
    parse_hosts,
    parse_management_urls,
    read_certificates,
)
from topology.broker.errors import BrokerError
from topology.broker.tokens import check_token_url
from topology.models import Broker
from topology.models.secrets import open_secret

# Fields that say where the password is sent: who changes one must type the password.
WHERE_THE_PASSWORD_GOES = (
    "amqp_addresses",
    "management_urls",
    "tls",
    "verify_tls",
    "ca_certificate",
    "server_name",
    "sign_in",
    "token_url",
)
# Most addresses of a broker; each may be tried in turn while somebody waits.
MOST_ADDRESSES = 16
# Fields behind “More”, which is open when one of them is not as usual.
MORE_FIELDS = (
    "management_urls",
    "tls",
    "verify_tls",
    "ca_certificate",
    "server_name",
    "sign_in",
    "client_certificate",
    "client_key",
    "token_url",
    "token_scope",
)


class SecretText(forms.Textarea):
    """A field of several lines that never shows what was typed into it."""

    def format_value(self, value: Any) -> str:
        return ""


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


def _fill_from_url(data: Any) -> Any:
    """What was typed, with an AMQP URI in place of the addresses taken apart into its fields.

    One that cannot be read goes without its account, which the page must not show again.
    """
    typed = (data.get("amqp_addresses") or "").strip()
    if not typed.startswith(("amqp://", "amqps://")):
        return data
    found = data.copy()
    try:
        address = parse_address(typed)
    except AddressError:
        found["amqp_addresses"] = typed.rpartition("@")[2]
        return found
    found["amqp_addresses"] = ", ".join(one.amqp_name for one in address.amqp_nodes)
    found["vhost"] = address.vhost
    if "@" in typed:
        found["username"], found["password"] = address.username, address.password
    if address.tls:
        found["tls"] = "on"
    return found


class BrokerForm(forms.ModelForm):
    """A broker; on an existing one an empty password or key keeps the stored one."""

    # Which of them are needed depends on the account.
    sometimes_required = ("management_urls", "client_certificate", "client_key", "token_url")

    password = forms.CharField(
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        required=False,
        help_text="Encrypted at rest.",
    )
    client_key = forms.CharField(
        widget=SecretText(attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false"}),
        required=False,
        label="Private key",
        help_text="PEM text of the key of the client certificate. Encrypted at rest.",
    )

    class Meta:
        model = Broker
        fields: ClassVar[list[str]] = [
            "name",
            "environment",
            "colour",
            "is_production",
            "is_read_only",
            "needs_approval",
            "amqp_addresses",
            "vhost",
            "username",
            "password",
            *MORE_FIELDS,
        ]
        widgets: ClassVar[dict[str, Any]] = {
            "ca_certificate": forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
            "client_certificate": forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        }
        help_texts: ClassVar[dict[str, str]] = {
            "environment": "Shown on every page of this broker, for example staging.",
            "is_production": "Publishing, discarding and deleting then require the broker name.",
            "is_read_only": "Delayboard changes no message and no object of this broker.",
            "needs_approval": "One operator requests a replay, and another one starts it.",
            "amqp_addresses": (
                "Host, or host:port. For a cluster, the addresses of all nodes, separated by "
                "commas."
            ),
            "management_urls": (
                "URL of the management API. For a cluster, those of all nodes, separated by "
                "commas. Empty: port 15672 of each host, with TLS 15671."
            ),
            "vhost": "Add a broker once for each virtual host.",
            "tls": "AMQP over TLS (amqps). For the management API, enter an https URL.",
            "verify_tls": "Reject untrusted certificates.",
            "ca_certificate": "PEM text of the CA. Empty: the certificates of the system.",
            "server_name": "Name in the certificate of RabbitMQ, if that is not the host.",
            "sign_in": (
                "With a client certificate, the user and password are for the management API. "
                "With OAuth 2, they are the client id and the client secret."
            ),
            "client_certificate": "PEM text, for AMQP and the management API.",
            "token_url": "Token endpoint of the identity provider (client credentials).",
            "token_scope": "Scopes to request, separated by blanks.",
        }
        labels: ClassVar[dict[str, str]] = {
            "amqp_addresses": "AMQP address",
            "vhost": "Virtual host",
            "management_urls": "Management address",
            "tls": "TLS",
            "verify_tls": "Verify certificate",
            "ca_certificate": "CA certificate",
            "server_name": "Server name",
            "sign_in": "Account",
            "client_certificate": "Client certificate",
            "token_url": "Token address",
            "token_scope": "Token scope",
            "is_production": "Production broker",
            "is_read_only": "Read-only",
            "needs_approval": "Replays need the approval of a second person",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data = _fill_from_url(self.data)
        self.fields["management_urls"].required = self.fields["sign_in"].required = False
        if self.instance.pk:
            self.fields["password"].help_text = "Leave empty to use the stored password."
        if self.instance.sealed_client_key:
            self.fields["client_key"].help_text = "Leave empty to use the stored key."

    @property
    def is_unusual(self) -> bool:
        """Whether a field behind “More” has something that is not the default, or an error."""
        usual = {"management_urls": "", "verify_tls": True, "sign_in": Broker.SignIns.PASSWORD}
        return any(
            self[name].errors or (self[name].value() or "") != (usual.get(name) or "")
            for name in MORE_FIELDS
        )

    def clean_sign_in(self) -> str:
        sign_in: str = self.cleaned_data["sign_in"] or self.instance.sign_in
        return sign_in

    def clean_ca_certificate(self) -> str:
        pem: str = self.cleaned_data["ca_certificate"]
        if pem.strip():
            try:
                ssl.create_default_context(cadata=pem)
            except (ssl.SSLError, ValueError) as error:
                sentence = "The CA certificate is not readable PEM text."
                raise forms.ValidationError(sentence) from error
        return pem

    def clean_server_name(self) -> str:
        name: str = self.cleaned_data["server_name"]
        if name:
            check_host(name)
        return name

    def clean_client_certificate(self) -> str:
        pem: str = self.cleaned_data["client_certificate"]
        if pem.strip():
            try:
                read_certificates(pem)
            except AddressError as error:
                raise forms.ValidationError(str(error)) from error
        return pem

    def clean_token_url(self) -> str:
        url: str = self.cleaned_data["token_url"]
        if url:
            try:
                check_token_url(url)
            except AddressError as error:
                raise forms.ValidationError(str(error)) from error
            check_host(urlsplit(url).hostname or "")
        return url

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        for name, clean in (
            ("amqp_addresses", self._clean_amqp),
            ("management_urls", self._clean_management),
        ):
            try:
                if name in cleaned:
                    cleaned[name] = clean(cleaned)
            except AddressError as error:
                self.add_error(name, str(error))
            except forms.ValidationError as error:
                self.add_error(name, error)
        self._check_account(cleaned)
        if not self.instance.pk and not cleaned.get("password"):
            self.add_error("password", "The password is missing.")
        elif not cleaned.get("password") and self._leads_elsewhere(cleaned):
            self.add_error(
                "password",
                "The address changed. Type the password again, so that Delayboard does not "
                "send it to another server.",
            )
        return cleaned

    def save(self, commit: bool = True) -> Broker:
        broker: Broker = self.instance
        if not self.cleaned_data["client_certificate"]:
            broker.set_client_key("")
        elif self.cleaned_data["client_key"]:
            broker.set_client_key(self.cleaned_data["client_key"])
        broker.silent = {}
        saved: Broker = super().save(commit)
        return saved

    def _clean_amqp(self, cleaned: dict[str, Any]) -> str:
        typed: str = cleaned["amqp_addresses"]
        if not typed.isprintable():
            raise forms.ValidationError("The address contains control characters.")
        hosts = parse_hosts(typed, tls=bool(cleaned.get("tls")))
        if not 0 < len(hosts) <= MOST_ADDRESSES:
            raise AddressError(f"Enter 1 to {MOST_ADDRESSES} addresses.")
        for host, _ in hosts:
            check_host(host)
        return ", ".join(format_host_port(*one) for one in hosts)

    def _clean_management(self, cleaned: dict[str, Any]) -> str:
        typed: str = cleaned["management_urls"]
        # `urlsplit` drops line ends and tabs unseen.
        if not typed.isprintable():
            raise forms.ValidationError("The management address contains control characters.")
        if not typed.strip(", "):
            if "amqp_addresses" not in cleaned:
                return ""
            tls = bool(cleaned.get("tls"))
            hosts = parse_hosts(cleaned["amqp_addresses"], tls=tls)
            return ", ".join(default_management_urls(hosts, tls=tls))
        urls = parse_management_urls(typed)
        if len(urls) > MOST_ADDRESSES:
            raise AddressError(f"Enter 1 to {MOST_ADDRESSES} addresses.")
        for url in urls:
            check_host(urlsplit(url).hostname or "")
        return ", ".join(urls)

    def _check_account(self, cleaned: dict[str, Any]) -> None:
        """What the sign-in needs, and whether the key belongs to the certificate."""
        sign_in, pem = cleaned.get("sign_in"), str(cleaned.get("client_certificate", "")).strip()
        if sign_in == Broker.SignIns.TOKEN and "token_url" in cleaned and not cleaned["token_url"]:
            self.add_error("token_url", "The token address is missing.")
        if sign_in == Broker.SignIns.CERTIFICATE:
            if not cleaned.get("tls"):
                self.add_error("tls", "A client certificate needs TLS.")
            if "client_certificate" in cleaned and not pem:
                self.add_error("client_certificate", "The client certificate is missing.")
        if pem:
            try:
                key = cleaned.get("client_key") or open_secret(self.instance.sealed_client_key)
                if not key:
                    raise AddressError("The private key of the client certificate is missing.")
                load_client_certificate(ssl.create_default_context(), pem, key)
            except BrokerError as error:
                self.add_error("client_key", str(error))

    def _leads_elsewhere(self, cleaned: dict[str, Any]) -> bool:
        """Compares words: browsers send other line ends than a certificate was stored with."""
        return any(
            str(cleaned[name]).split() != str(getattr(self.instance, name)).split()
            for name in WHERE_THE_PASSWORD_GOES
            if name in cleaned
        )
