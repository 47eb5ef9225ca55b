"""What operators type about brokers and topologies."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from ipaddress import ip_address
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django import forms
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import QuerySet
from django.utils import timezone

from topology import access, latest
from topology.broker.address import AddressError, check_management_url
from topology.broker.properties.field_values import FieldError, write_table
from topology.models import Broker, Role
from topology.patterns.pattern import Field, ParamsError
from topology.patterns.table import PATTERNS
from topology.provisioning.taps import DEFAULT_TAP, TapType
from topology.routing.trace_route import Question

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
            "environment": "Shown on every page of this broker, for example staging.",
            "is_production": "Publishing, discarding and deleting then require the broker name.",
            "management_url": "URL of the management API, for example http://host:15672",
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


TAPS: tuple[tuple[TapType, str], ...] = (
    ("classic", "classic: a bounded queue that accepts all messages"),
    ("stream", "stream: no duplicates after a crash, but refuses decimal headers"),
)
TAPS_HELP = (
    "Delayboard copies messages into this queue. A message with a decimal header (BigDecimal of "
    "Java) breaks a stream: RabbitMQ closes the publisher's connection, or the queue that "
    "dead-letters it crashes. Choose a stream only if no publisher sends decimals."
)


class BrokerChoice(forms.ModelChoiceField):
    """A broker, by its slug as in addresses; of several none is chosen beforehand."""

    def __init__(self, queryset: QuerySet[Broker], **options: Any) -> None:
        options.setdefault("empty_label", None if queryset.count() == 1 else "select a broker")
        super().__init__(queryset, to_field_name="slug", **options)

    def label_from_instance(self, obj: Broker) -> str:
        return f"{obj.name} ({obj.environment})"


class ParametersForm(forms.Form):
    """The parameters of a topology as its pattern asks for them, and checked by it."""

    def __init__(self, *args: Any, kind: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pattern = PATTERNS[kind]
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
    """A new topology: its broker, its parameters and its tap."""

    def __init__(
        self, *args: Any, user: AbstractBaseUser | AnonymousUser, kind: str, **kwargs: Any
    ) -> None:
        super().__init__(*args, kind=kind, **kwargs)
        self.fields["broker"] = BrokerChoice(access.visible_brokers(user, Role.OPERATOR))
        self.fields["tap_type"] = forms.TypedChoiceField(
            choices=TAPS,
            required=False,
            empty_value=DEFAULT_TAP,
            initial=DEFAULT_TAP,
            label="Recording",
            help_text=TAPS_HELP,
        )
        self.order_fields(["broker"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if "params" in cleaned:
            self._check_broker(cleaned["broker"], cleaned["params"])
        return cleaned

    def _check_broker(self, broker: Broker, params: Any) -> None:
        """By what is known of it; one that nobody has asked yet refuses when it is applied."""
        known = latest.latest(broker.pk)
        if known is None or known.snapshot is None:
            return
        seen = known.snapshot
        if wrong := self.pattern.obstacle(params, seen.version_tuple, seen.exchange_types):
            self.add_error("broker", wrong)


def _form_field(field: Field) -> forms.Field:
    settings: dict[str, Any] = {
        "label": field.label,
        "help_text": field.help,
        "initial": field.initial,
        "required": field.required,
    }
    if field.choices:
        return forms.ChoiceField(choices=field.choices, **settings)
    widget = forms.TextInput(attrs={"class": "name"})
    return forms.CharField(max_length=2000, strip=False, widget=widget, **settings)


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
        """Of a valid form."""
        data = self.cleaned_data
        return Question(
            exchange=data["exchange"],
            routing_key=data["routing_key"],
            headers=data["headers"],
            expiration=data["expiration"] or None,
            rejecting=data["rejecting"].split(),
            without_consumers=data["without_consumers"],
        )


LONGEST_MUTE = timedelta(days=366)


class MuteForm(forms.Form):
    """Why a finding is not counted, and until when: `until` becomes the end of that day, UTC."""

    reason = forms.CharField(max_length=300, help_text="For example a ticket or the owner.")
    until = forms.DateField(
        label="Last day (UTC)",
        help_text="The finding counts again after this day.",
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
