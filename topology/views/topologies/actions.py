"""What is done to a topology: create, edit, apply, record, probe, verify, replace, delete."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from topology import access, snapshots
from topology.broker.errors import BrokerError
from topology.forms.fields import BrokerChoice
from topology.models import Broker, Role, Topology
from topology.operations import edit_topology, provision, replace_queue, replace_tap
from topology.operations.destinations import restore_binding, unbind
from topology.operations.ownership import Refusal
from topology.operations.probes import start_probes, stop_probes
from topology.operations.topology_rows import create_topology, keep_bodies
from topology.patterns.pattern import Field, ParamsError
from topology.patterns.recommend import describe_recording
from topology.patterns.table import KINDS, PATTERNS, list_created
from topology.views.topologies.tabs import (
    return_to_page,
    show_failure,
    topology_action,
    with_topology,
)


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
        """Check the broker by what is known of it; one without an answer yet refuses when it is
        applied.
        """
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


@topology_action("Topology not applied.")
def topology_apply(request: HttpRequest, topology: Topology) -> str:
    return provision.apply(request.user, topology).sentence


@topology_action("Queues not replaced.")
def topology_replace(request: HttpRequest, topology: Topology) -> str:
    typed = request.POST.get("name", "").strip()
    queues = replace_queue.request(request.user, topology, typed_name=typed)
    return replace_queue.describe_request(queues)


@topology_action("Recording not enabled.")
def topology_record(request: HttpRequest, topology: Topology) -> str:
    provision.start_recording(request.user, topology)
    return "Recording enabled. The list does not include messages that were already waiting."


@topology_action("Tap not replaced.")
def topology_replace_tap(request: HttpRequest, topology: Topology) -> str:
    return replace_tap.replace_tap(request.user, topology)


@require_POST
@with_topology(Role.VIEWER)
def topology_verify(request: HttpRequest, topology: Topology) -> HttpResponse:
    try:
        verdict = provision.check(request.user, topology)
    except BrokerError as error:
        return show_failure(request, topology, f"Topology not verified. {error}")
    context = {"topology": topology, "broker": topology.broker, "verdict": verdict}
    return render(request, "topology/verdict.html", context)


@require_POST
@with_topology(Role.OPERATOR, changes=False)
def topology_bodies(request: HttpRequest, topology: Topology) -> HttpResponse:
    is_wanted = request.POST.get("keep") == "yes"
    try:
        keep_bodies(request.user, topology, is_wanted=is_wanted)
    except Refusal as refusal:
        messages.error(request, f"Body storage not changed. {refusal}")
    else:
        change = (
            "Body storage enabled."
            if is_wanted
            else "Body storage disabled. Delayboard keeps stored bodies until their retention ends."
        )
        messages.success(request, change)
    return redirect("topology:topology_settings", slug=topology.slug)


@require_POST
@with_topology(Role.OPERATOR)
def topology_teardown(request: HttpRequest, topology: Topology) -> HttpResponse:
    typed = request.POST.get("name", "").strip()
    try:
        done = provision.remove(request.user, topology, typed_name=typed)
    except Refusal as refusal:
        messages.error(request, f"Topology not deleted. {refusal}")
        return return_to_page(request, topology)
    except BrokerError as error:
        return show_failure(request, topology, f"Topology not deleted. {error}")
    kept = f", {len(done.keeps)} external objects kept" if done.keeps else ""
    messages.success(request, f"{topology.name}: {len(done.deletes)} objects deleted{kept}.")
    return redirect("topology:topologies")


@topology_action("Destination not unbound.")
def topology_unbind(request: HttpRequest, topology: Topology) -> str:
    key, destination = (request.POST.get(name, "") for name in ("routing_key", "destination"))
    typed = request.POST.get("name", "").strip()
    unbind(request.user, topology, key, destination, typed_name=typed)
    return f"{destination} is no longer a destination of this topology."


@topology_action("Binding not restored.")
def topology_restore(request: HttpRequest, topology: Topology) -> str:
    return restore_binding(request.user, topology, request.POST.get("destination", "")).sentence


@topology_action("Probes not changed.")
def topology_probes(request: HttpRequest, topology: Topology) -> str:
    if request.POST.get("probes") != "on":
        stop_probes(request.user, topology)
        return (
            "Probes disabled. The worker removes the probe queue after the last probe has arrived."
        )
    given = request.POST.get("minutes", "").strip()
    minutes = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0
    start_probes(request.user, topology, minutes=minutes)
    return f"Probes enabled, one every {'minute' if minutes == 1 else f'{minutes} minutes'}."


def topology_add(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "retry_pair")
    if kind not in list_created():
        raise Http404
    if not access.visible_brokers(request.user, Role.OPERATOR).exists():
        raise PermissionDenied("This action needs the role operator on a broker.")
    given = {field.name: request.GET.get(field.name) for field in PATTERNS[kind].FIELDS}
    initial: dict[str, Any] = {name: text for name, text in given.items() if text is not None}
    initial["broker"] = access.choose_brokers(request, Role.OPERATOR).chosen
    form = TopologyForm(request.POST or None, user=request.user, kind=kind, initial=initial)
    first = PATTERNS[kind].FIELDS[0].name
    if request.method == "POST" and form.is_valid():
        broker = form.cleaned_data["broker"]
        access.require(request.user, broker, Role.OPERATOR, request=request)
        params = form.cleaned_data["params"]
        try:
            made = create_topology(request.user, broker, kind, params)
        except Refusal as refusal:
            form.add_error(first, str(refusal))
        else:
            return redirect("topology:topology", slug=made.slug)
    pattern = PATTERNS[kind]
    params = form.cleaned_data.get("params") if form.is_bound and form.is_valid() else None
    context = {
        "form": form,
        "kind": kind,
        "explanation": pattern.EXPLANATION,
        "recording": describe_recording(pattern, params or pattern.EXAMPLE),
    }
    return render(request, "topology/topology_form.html", context)


@with_topology(Role.OPERATOR)
def topology_edit(request: HttpRequest, topology: Topology) -> HttpResponse:
    """GET with parameters previews the change, POST applies it; a chain of others has none."""
    if not topology.pattern.FIELDS:
        raise Http404
    given = request.POST or request.GET or None
    form = ParametersForm(given, kind=topology.kind, initial=topology.params)
    found = None
    if form.is_valid():
        try:
            if request.method == "POST":
                typed = request.POST.get("typed_name", "").strip()
                done = edit_topology.edit(request.user, topology, form.texts, typed_name=typed)
                messages.success(request, f"Parameters changed. {done.outcome}".strip())
                return return_to_page(request, topology)
            found = edit_topology.preview_edit(topology, form.texts)
        except (Refusal, BrokerError) as error:
            form.add_error(None, str(error))
    context = {"topology": topology, "broker": topology.broker, "form": form, "edit": found}
    return render(request, "topology/topology_edit.html", context)
