"""The publish form: checks what is typed, and makes the message of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from django import forms
from django.db.models import QuerySet

from delayboard.dead_letters.replay.edit_headers import TYPES, HeaderRow
from delayboard.forms.content import (
    FORMATS,
    BodyError,
    HeaderRowsField,
    format_json,
    make_rows,
    read_body,
)
from delayboard.publishing.publish_job import HIGHEST_RATE, MOST_MESSAGES
from delayboard.publishing.publish_message import OutgoingMessage
from topology.content.text import count_text
from topology.definitions import Definitions, find_own_queue_problem
from topology.delays import format_delay
from topology.forms.fields import BrokerChoice, DelayField, MomentField
from topology.message import Route
from topology.models import Broker, State, Topology
from topology.patterns.pattern import ParamsError

RARE_TEXTS = ("content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id")
RARE = ("expiration", "priority", *RARE_TEXTS)
# Fields that a template does not store: a time passes, and each message has its own id.
NOT_STORED = ("publication_id", "due_at")
BY_EXCHANGE = ("exchange", "routing_key")
# Mode -> the fields that only it has.
MODES = {
    "topology": ("topology", "delay", "due_at", "target"),
    "exchange": ("broker", *BY_EXCHANGE),
}
NOTHING = {"topology": None, "broker": None, "due_at": None, "delay": timedelta(0)}
OTHER_MODE = {"topology": "exchange", "exchange": "topology"}
# Bytes of a message id to which a job adds the number of a message; an id has 255.
LONGEST_ID_BASE = 255 - len("-100000")
OTHERS_DECIDE = (
    "A consumer outside Delayboard decides when messages of this adopted topology are due. "
    "Leave the delay empty to publish at once."
)


class TopologyChoice(forms.ModelChoiceField):  # type: ignore[type-arg]
    """Names are unique on one broker only, so each choice contains the broker."""

    def label_from_instance(self, obj: Topology) -> str:
        offered = [delay for delay in obj.pattern.delays(obj.parsed) if delay]
        few = ", ".join(format_delay(delay) for delay in offered[:3])
        kind = obj.pattern.EXPLANATION.title.lower()
        return f"{obj.name} on {obj.broker.name}: {kind}" + (f", {few}" if offered else "")


class PublishFields(forms.Form):
    """What an operator types about a message; `mode` decides which fields are used."""

    publication_id = forms.UUIDField(widget=forms.HiddenInput, required=False)
    topology = TopologyChoice(
        Topology.objects.none(),
        to_field_name="slug",
        required=False,
        empty_label="Select a topology",
        help_text="The topology sets the exchange, routing key and delay.",
    )
    mode = forms.ChoiceField(
        required=False,
        label="Publish through",
        choices=(("topology", "A topology"), ("exchange", "An exchange or queue")),
        widget=forms.RadioSelect,
    )
    delay = DelayField(
        nothing=timedelta(0),
        help_text="Empty: no delay.",
        widget=forms.TextInput(attrs={"list": "delays"}),
    )
    due_at = MomentField(
        required=False,
        label="Due time",
        help_text="A time instead of a delay.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}),
    )
    target = forms.CharField(
        required=False,
        max_length=255,
        help_text="Destination or routing key, if the topology needs one.",
        widget=forms.TextInput(attrs={"class": "name", "list": "targets"}),
    )
    exchange = forms.CharField(
        required=False,
        max_length=255,
        help_text="Empty: default exchange, which routes to the queue named by the routing key.",
        widget=forms.TextInput(attrs={"list": "exchanges"}),
    )
    routing_key = forms.CharField(
        required=False, max_length=255, widget=forms.TextInput(attrs={"list": "routing-keys"})
    )
    body_format = forms.ChoiceField(
        required=False, choices=FORMATS, initial="text", widget=forms.RadioSelect
    )
    body = forms.CharField(
        required=False, strip=False, widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"})
    )
    content_type = forms.CharField(required=False, max_length=255, initial="text/plain")
    headers = HeaderRowsField(required=False)
    persistent = forms.BooleanField(required=False, initial=True)
    priority = forms.IntegerField(required=False, min_value=0, max_value=255)
    expiration = DelayField(help_text="Empty: no TTL.")
    content_encoding = forms.CharField(required=False, max_length=255)
    correlation_id = forms.CharField(required=False, max_length=255)
    message_id = forms.CharField(
        required=False, max_length=255, help_text="Empty: Delayboard creates an id."
    )
    reply_to = forms.CharField(required=False, max_length=255)
    type = forms.CharField(required=False, max_length=255)
    app_id = forms.CharField(required=False, max_length=255)
    count = forms.IntegerField(
        required=False,
        label="Number of messages",
        min_value=1,
        max_value=MOST_MESSAGES,
        help_text=f"At most {count_text(MOST_MESSAGES)}.",
    )
    rate = forms.FloatField(
        required=False,
        label="Messages per second",
        min_value=1,
        max_value=HIGHEST_RATE,
        help_text=f"1 to {count_text(HIGHEST_RATE)}.",
    )


class PublishForm(PublishFields):
    """A message: through a topology with or without delay, or to any exchange of a broker."""

    def __init__(self, *args: Any, brokers: QuerySet[Broker], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        applied = Topology.objects.filter(broker__in=brokers, state=State.APPLIED)
        self.fields["topology"].queryset = applied.select_related("broker")  # type: ignore[attr-defined]
        self.fields["broker"] = BrokerChoice(brokers, required=False, empty_label="Select a broker")
        self.fields["publication_id"].initial = uuid4
        is_exchange = not self.initial.get("topology") and any(map(self.initial.get, BY_EXCHANGE))
        self.initial.setdefault("mode", "exchange" if is_exchange else "topology")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        self._drop_other_mode(cleaned)
        try:
            cleaned["body"] = read_body(cleaned.get("body", ""), cleaned.get("body_format", ""))
        except BodyError as error:
            self.add_error("body", str(error))
        self._read_due_at(cleaned)
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
        for name in ("target",) if cleaned.get("exchange") else ("target", "routing_key"):
            if problem := find_own_queue_problem(cleaned.get(name, "")):
                self.add_error(name, problem)
        return cleaned

    def _drop_other_mode(self, cleaned: dict[str, Any]) -> None:
        """What the form does not show in the chosen mode is not used."""
        for name in MODES.get(OTHER_MODE.get(cleaned.get("mode") or "", ""), ()):
            cleaned[name] = NOTHING.get(name, "")
            self.errors.pop(name, None)

    def _read_due_at(self, cleaned: dict[str, Any]) -> None:
        """Turn the time into a delay from now on."""
        due_at = cleaned.get("due_at")
        if due_at is None:
            return
        delay = due_at - datetime.now(UTC)
        if cleaned.get("delay"):
            self.add_error("due_at", "Enter a delay or a time, not both.")
        elif delay <= timedelta(0):
            self.add_error("due_at", "This time is in the past. Enter a later time.")
        elif not cleaned.get("topology"):
            self.add_error(
                "due_at", "A due time needs a topology. Select a topology, or clear the due time."
            )
        cleaned["delay"] = timedelta(milliseconds=delay // timedelta(milliseconds=1))

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

    def check_many(self) -> bool:
        """Whether many such messages can be published; else the problems are noted."""
        data = self.cleaned_data
        for name, words in (("count", "the number of messages"), ("rate", "the rate")):
            if data.get(name) is None and name not in self.errors:
                self.add_error(name, f"Enter {words}.")
        if data.get("due_at"):
            self.add_error("due_at", "Enter a delay: each message is published at another time.")
        if len(data.get("message_id", "").encode()) > LONGEST_ID_BASE:
            self.add_error("message_id", f"Enter at most {LONGEST_ID_BASE} bytes.")
        return not self.errors

    @property
    def has_rare_properties(self) -> bool:
        """Whether something is typed, or wrong, in a field that is folded away."""
        return any(self[name].errors or self[name].value() for name in RARE)

    @property
    def header_rows(self) -> Sequence[HeaderRow]:
        """The typed headers, and an empty row."""
        return [*make_rows(self["headers"].value()), HeaderRow()]

    @property
    def header_types(self) -> Sequence[str]:
        return tuple(TYPES)

    @property
    def typed(self) -> dict[str, Any]:
        """What a template keeps: the values of all fields but the time and the id."""
        names = [name for name in self.fields if name not in NOT_STORED]
        return {name: self[name].value() for name in names} | {
            "headers": [list(row[:3]) for row in make_rows(self["headers"].value())]
        }

    @property
    def typed_broker(self) -> Broker | None:
        """The broker of what is typed, if the user may use it."""
        topology, broker = self.chosen("topology"), self.chosen("broker")
        return topology.broker if isinstance(topology, Topology) else broker  # type: ignore[return-value]

    def format_body(self) -> None:
        """Show the typed JSON formatted, or what is wrong with it."""
        try:
            text = format_json(self.data.get("body", ""))
        except BodyError as error:
            self.full_clean()
            self.add_error("body", str(error))
        else:
            data = self.data.copy()  # type: ignore[attr-defined]
            data["body"] = text
            self.data = data

    def chosen(self, name: str) -> Topology | Broker | None:
        """The row of the field as typed, if the user may use it; of the shown mode only."""
        mode = self["mode"].value()
        if name in MODES.get(OTHER_MODE.get(mode, ""), ()):
            return None
        slug = str(self[name].value() or "")
        found: Topology | Broker | None = self.fields[name].queryset.filter(slug=slug).first()  # type: ignore[attr-defined]
        return found

    @property
    def chosen_broker(self) -> Broker:
        topology = self.cleaned_data.get("topology")
        broker: Broker = topology.broker if topology else self.cleaned_data["broker"]
        return broker

    def outgoing(self) -> OutgoingMessage:
        """The message of a valid form."""
        data = self.cleaned_data
        topology, asked = data.get("topology"), data["delay"]
        route = data.get("route") or Route(data["exchange"], data["routing_key"])
        target = note = ""
        if topology is not None:
            target = self._target(topology.pattern.targets(topology.parsed))
            given = topology.pattern.achievable(topology.parsed, asked)
            if given != asked:
                note = f"{format_delay(asked)} is rounded up to {format_delay(given)}."
        # By their AMQP names.
        stated = {name: data[name] for name in ("content_type", *RARE_TEXTS) if data.get(name)}
        stated["delivery_mode"] = 2 if data.get("persistent") else 1
        stated["timestamp"] = int(datetime.now(UTC).timestamp())
        if data.get("priority") is not None:
            stated["priority"] = data["priority"]
        if data.get("expiration") is not None:
            stated["expiration"] = str(data["expiration"] // timedelta(milliseconds=1))
        return OutgoingMessage(
            route,
            data["body"],
            data["headers"],
            stated,
            topology=topology,
            target=target,
            note=note,
            delay=asked,
            id=data["publication_id"] or uuid4(),
        )
