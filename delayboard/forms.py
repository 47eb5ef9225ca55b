"""What operators type about messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from django import forms
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from delayboard.publishing.send import OutgoingMessage
from topology import access
from topology.definitions import Definitions, is_tap
from topology.delays import DelayError, format_delay, parse_delay
from topology.forms import BrokerChoice, HeadersField
from topology.message import Route
from topology.models import Broker, Role, State, Topology
from topology.patterns.pattern import ParamsError

PLAIN = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id")
RARE = (
    "expiration",
    "priority",
    "message_id",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
    "content_encoding",
)
LARGEST_BODY = 8 * 1024 * 1024
OTHERS_DECIDE = (
    "A consumer outside Delayboard decides when messages of this adopted topology are due. "
    "Leave the delay empty to publish at once."
)


class TopologyChoice(forms.ModelChoiceField):  # type: ignore[type-arg]
    """Names are unique on one broker only, so the broker is said too."""

    def label_from_instance(self, obj: Topology) -> str:
        offered = obj.pattern.delays(obj.parsed)
        few = ", ".join(format_delay(delay) for delay in offered[:3])
        kind = obj.pattern.EXPLANATION.title.lower()
        return f"{obj.name} on {obj.broker.name}: {kind}" + (f", {few}" if offered else "")


class PublishForm(forms.Form):
    """A message: through a topology with or without delay, or to any exchange of a broker."""

    publication_id = forms.UUIDField(widget=forms.HiddenInput, required=False)
    topology = TopologyChoice(
        Topology.objects.none(),
        to_field_name="slug",
        required=False,
        empty_label="none: use the exchange below",
        help_text="The topology sets the exchange, routing key and delay.",
    )
    delay = forms.CharField(
        required=False,
        help_text="For example 90s or 1h30m. Empty: no delay. Rounded up to the topology's steps.",
    )
    target = forms.CharField(
        required=False,
        max_length=255,
        help_text="Destination or routing key, if the topology needs one.",
        widget=forms.TextInput(attrs={"class": "name"}),
    )
    exchange = forms.CharField(required=False, max_length=255, help_text="Empty: default exchange.")
    routing_key = forms.CharField(required=False, max_length=255)
    body = forms.CharField(
        required=False, widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"})
    )
    content_type = forms.CharField(required=False, max_length=255, initial="application/json")
    headers = HeadersField(required=False, help_text="A JSON object. Numbers remain numbers.")
    persistent = forms.BooleanField(required=False, initial=True)
    priority = forms.IntegerField(required=False, min_value=0, max_value=255)
    expiration = forms.CharField(
        required=False, help_text="Message TTL, for example 30s. Empty: no TTL."
    )
    content_encoding = forms.CharField(required=False, max_length=255)
    correlation_id = forms.CharField(required=False, max_length=255)
    message_id = forms.CharField(
        required=False, max_length=255, help_text="Empty: Delayboard creates an id."
    )
    reply_to = forms.CharField(required=False, max_length=255)
    type = forms.CharField(required=False, max_length=255)
    app_id = forms.CharField(required=False, max_length=255)

    def __init__(self, *args: Any, user: AbstractBaseUser | AnonymousUser, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        brokers = access.visible_brokers(user, Role.OPERATOR)
        applied = Topology.objects.filter(broker__in=brokers, state=State.APPLIED)
        self.fields["topology"].queryset = applied.select_related("broker")  # type: ignore[attr-defined]
        self.fields["broker"] = BrokerChoice(
            brokers, required=False, empty_label="none: use the topology above"
        )
        self.fields["publication_id"].initial = uuid4

    def clean_delay(self) -> timedelta:
        text = self.cleaned_data["delay"]
        try:
            return parse_delay(text) if text else timedelta(0)
        except DelayError as error:
            raise forms.ValidationError(str(error)) from error

    def clean_expiration(self) -> timedelta | None:
        text = self.cleaned_data["expiration"]
        try:
            return parse_delay(text) if text else None
        except DelayError as error:
            raise forms.ValidationError(str(error)) from error

    def clean_body(self) -> bytes:
        body: bytes = self.cleaned_data["body"].replace("\r\n", "\n").encode()
        if len(body) > LARGEST_BODY:
            raise forms.ValidationError("The body is larger than 8 MB.")
        return body

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not cleaned.get("topology") and not cleaned.get("broker"):
            self.add_error("topology", "Choose a topology, or a broker and an exchange.")
        for name, words in (("delay", "A delay"), ("target", "A target")):
            if cleaned.get(name) and not cleaned.get("topology"):
                self.add_error(name, f"{words} needs a topology.")
        topology, broker = cleaned.get("topology"), cleaned.get("broker")
        is_elsewhere = bool(topology and broker and broker != topology.broker)
        if topology and (is_elsewhere or cleaned.get("exchange") or cleaned.get("routing_key")):
            self.add_error("topology", "Choose a topology, or a broker and an exchange, not both.")
        if cleaned.get("topology") and not self.errors:
            cleaned["route"] = self._route(cleaned["topology"], cleaned["delay"])
        if not cleaned.get("exchange") and is_tap(cleaned.get("routing_key", "")):
            self.add_error(
                "routing_key", "This queue is a tap of Delayboard. Choose another queue."
            )
        return cleaned

    def _route(self, topology: Topology, delay: timedelta) -> Route | None:
        """Into the topology's delay; None with the problems noted at their fields."""
        pattern, params = topology.pattern, topology.parsed
        offered, targets = pattern.delays(params), pattern.targets(params)
        if delay and topology.is_read_by_others:
            self.add_error("delay", OTHERS_DECIDE)
            return None
        if delay and any(offered) and delay not in offered:
            few = ", ".join(format_delay(one) for one in offered)
            self.add_error("delay", f"Choose one of these delays: {few}.")
            return None
        try:
            return pattern.route(params, delay, self._target(targets))
        except ParamsError as error:
            for name, problem in error.problems.items():
                self.add_error(name, problem)
        return None

    def _target(self, targets: Sequence[str]) -> str:
        typed: str = self.cleaned_data["target"]
        return targets[0] if not typed and len(targets) == 1 else typed

    def check_target(self, found: Definitions) -> bool:
        """Whether the target can be reached in this vhost; else the problem is noted."""
        topology = self.cleaned_data.get("topology")
        if topology is None:
            return True
        pattern, params = topology.pattern, topology.parsed
        target = self._target(pattern.targets(params))
        problem = pattern.target_problem(params, target, found)
        if problem:
            self.add_error("target", problem)
        return not problem

    @property
    def has_rare_properties(self) -> bool:
        """Whether something is typed, or wrong, in a field that is folded away."""
        return any(self[name].errors or self[name].value() for name in RARE)

    @property
    def chosen_broker(self) -> Broker:
        topology = self.cleaned_data.get("topology")
        broker: Broker = topology.broker if topology else self.cleaned_data["broker"]
        return broker

    def outgoing(self) -> OutgoingMessage:
        """The message of a valid form."""
        data = self.cleaned_data
        topology = data.get("topology")
        properties = _properties(data)
        if topology is None:
            return OutgoingMessage(
                data["exchange"],
                data["routing_key"],
                data["body"],
                data["headers"],
                properties,
                id=data["publication_id"] or uuid4(),
            )
        route, asked = data["route"], data["delay"]
        given = topology.pattern.achievable(topology.parsed, asked)
        rounded = f"{format_delay(asked)} is rounded up to {format_delay(given)}."
        return OutgoingMessage(
            route.exchange,
            route.routing_key,
            data["body"],
            data["headers"],
            properties,
            way=route,
            topology=topology,
            target=self._target(topology.pattern.targets(topology.parsed)),
            note=rounded if given != asked else "",
            id=data["publication_id"] or uuid4(),
        )


def _properties(data: Mapping[str, Any]) -> dict[str, Any]:
    stated = {name: data[name] for name in (*PLAIN, "type", "app_id") if data.get(name)}
    stated["delivery_mode"] = 2 if data.get("persistent") else 1
    stated["timestamp"] = int(datetime.now(UTC).timestamp())
    if data.get("priority") is not None:
        stated["priority"] = data["priority"]
    if data.get("expiration") is not None:
        stated["expiration"] = str(data["expiration"] // timedelta(milliseconds=1))
    return stated
