"""Topologies: the list, a new one, its page with plan and picture, and what is done to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from topology import access, latest
from topology.broker.errors import BrokerError
from topology.definitions import Definitions
from topology.delays import in_words
from topology.forms import TAPS, TAPS_HELP, ParametersForm, TopologyForm
from topology.graph.live_values import MARK_WORDS
from topology.models import QueueReplacement, Role, State, Topology
from topology.operations import edit_topology, provision, replace_queue, replace_tap
from topology.operations.export_topology import FORMATS
from topology.operations.ownership import Refusal
from topology.operations.probes import probe_problem
from topology.operations.restore_binding import obstacle_to, restore_binding
from topology.operations.topology_rows import create_topology, keep_bodies
from topology.patterns.advice import advise
from topology.patterns.client_code import list_examples
from topology.patterns.table import PATTERNS
from topology.provisioning.plan import title
from topology.provisioning.taps import DEFAULT_TAP
from topology.snapshot import Snapshot
from topology.views.brokers.queues import queue_lines
from topology.views.diagram import draw, explanation_picture
from topology.views.findings import count_by_topology, lines_of
from topology.views.redirect_back import next_of
from topology.views.sorting import read_sort

# Of the list: what is in the address -> the column.
SORTS = {"name": "name", "pattern": "kind", "broker": "broker__name", "applied": "applied_at"}


def with_topology(role: Role) -> Callable[[access.View], access.View]:
    """A view of `/topologies/<slug>/`: hands it the Topology, if the user holds the role."""

    def decorate(view: access.View) -> access.View:
        @wraps(view)
        def guarded(request: HttpRequest, slug: str) -> HttpResponse:
            topology = get_object_or_404(Topology.objects.select_related("broker"), slug=slug)
            access.require(request.user, topology.broker, role)
            return view(request, topology)

        return guarded

    return decorate


@require_safe
def topologies(request: HttpRequest) -> HttpResponse:
    visible = access.visible_brokers(request.user)
    rows = Topology.objects.filter(broker__in=visible).select_related("broker", "drift")
    rows = rows.prefetch_related("missing_bindings")
    broker = access.chosen_broker(visible, request.GET.get("broker", ""))
    if broker is not None:
        rows = rows.filter(broker=broker)
    if request.GET.get("deleted") != "yes":
        rows = rows.exclude(state=State.DELETED)
    sort = read_sort(request, SORTS, "name")
    first = SORTS[sort.removeprefix("-")]
    ordered = F(first).desc(nulls_last=True) if sort.startswith("-") else F(first).asc()
    rows = rows.order_by(ordered, "name", "pk")
    counts = count_by_topology(rows)
    return render(
        request,
        "topology/topologies.html",
        {
            "rows": [(one, counts.get(one.pk)) for one in rows],
            "brokers": visible,
            "broker": broker,
            "sort": sort,
            "with_deleted": request.GET.get("deleted") == "yes",
            "patterns": PATTERNS,
            "stream_taps": replace_tap.list_stream_taps(request.user, visible),
            "may_add": access.visible_brokers(request.user, Role.OPERATOR).exists(),
        },
    )


def topology_add(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "retry_pair")
    if kind not in PATTERNS:
        raise Http404
    operated = access.visible_brokers(request.user, Role.OPERATOR)
    if not operated.exists():
        raise PermissionDenied("This action needs the role operator on a broker.")
    initial = {"broker": access.chosen_broker(operated, request.GET.get("broker", ""))}
    form = TopologyForm(request.POST or None, user=request.user, kind=kind, initial=initial)
    first = PATTERNS[kind].FIELDS[0].name
    if request.method == "POST" and form.is_valid():
        broker = form.cleaned_data["broker"]
        access.require(request.user, broker, Role.OPERATOR)
        params = form.cleaned_data["params"]
        try:
            made = create_topology(
                request.user, broker, kind, params, tap_type=form.cleaned_data["tap_type"]
            )
        except Refusal as refusal:
            form.add_error(first, str(refusal))
        else:
            return redirect("topology:topology", slug=made.slug)
    context = {"form": form, "kind": kind, "explanation": PATTERNS[kind].EXPLANATION}
    return render(request, "topology/topology_form.html", context)


@with_topology(Role.OPERATOR)
def topology_edit(request: HttpRequest, topology: Topology) -> HttpResponse:
    """GET with parameters previews the change, POST applies it."""
    given = request.POST or request.GET or None
    form = ParametersForm(given, kind=topology.kind, initial=topology.params)
    found = None
    if form.is_valid():
        try:
            if request.method == "POST":
                typed = request.POST.get("typed_name", "").strip()
                done = edit_topology.edit(request.user, topology, form.texts, typed_name=typed)
                messages.success(request, f"Parameters changed. {done.outcome}".strip())
                return _back(request, topology)
            found = edit_topology.preview_edit(topology, form.texts)
        except (Refusal, BrokerError) as error:
            form.add_error(None, str(error))
    context = {"topology": topology, "broker": topology.broker, "form": form, "edit": found}
    return render(request, "topology/topology_edit.html", context)


@require_safe
def explain(request: HttpRequest, kind: str) -> HttpResponse:
    if kind not in PATTERNS:
        raise Http404
    pattern = PATTERNS[kind]
    context = {
        "kind": kind,
        "explanation": pattern.EXPLANATION,
        "example": pattern.consumer_example(pattern.EXAMPLE),
        "picture": explanation_picture(kind),
        "patterns": PATTERNS,
    }
    return render(request, "topology/explain.html", context)


def _tab(name: str) -> access.View:
    """The view of one tab of a topology's page."""

    @require_safe
    @with_topology(Role.VIEWER)
    def view(request: HttpRequest, topology: Topology) -> HttpResponse:
        return _topology_page(request, topology, name)

    return view


topology = _tab("overview")
topology_destinations = _tab("destinations")
topology_definition = _tab("definition")
topology_code = _tab("code")
topology_settings = _tab("settings")


def _topology_page(request: HttpRequest, topology: Topology, tab: str) -> HttpResponse:
    known = latest.fresh(topology.broker)
    context = {
        "tab": tab,
        "topology": topology,
        "broker": topology.broker,
        "latest": known,
        "picture": (
            draw(topology, known.snapshot, all_levels=request.GET.get("levels") == "all")
            if tab == "overview"
            else None
        ),
        "example": topology.pattern.consumer_example(topology.parsed),
        "clients": list_examples(topology.pattern, topology.parsed),
        "targets": list(topology.pattern.targets(topology.parsed)),
        "explanation": topology.pattern.EXPLANATION,
        "may_operate": access.may(request.user, topology.broker, Role.OPERATOR),
        "mark_words": MARK_WORDS,
        "binds": topology.pattern.destinations(topology.parsed, Definitions()) is not None,
        "longest_delay": _longest(topology),
        "stated": _stated(topology),
        "tap_choices": TAPS,
        "tap_help": TAPS_HELP,
        "exports": [(form, label) for form, (label, _, _) in FORMATS.items()],
        "replacing": QueueReplacement.open_of(topology).select_related("work"),
        "first_delay": next(iter(topology.pattern.delays(topology.parsed)), None),
    }
    if known.snapshot:
        context |= _standing(topology, known.snapshot)
        if tab == "settings":
            context["probe_problem"] = probe_problem(topology, known.snapshot)
        version = known.snapshot.version_tuple
        context["advice"] = advise(topology.kind, topology.parsed, version)
    return render(request, "topology/topology.html", context)


@require_POST
@with_topology(Role.OPERATOR)
def topology_apply(request: HttpRequest, topology: Topology) -> HttpResponse:
    def apply() -> str:
        created = provision.apply(request.user, topology).created
        return f"Applied: {f'{created} created' if created else 'all objects exist'}."

    return try_action(request, topology, apply, "Topology not applied.")


@require_POST
@with_topology(Role.OPERATOR)
def topology_replace(request: HttpRequest, topology: Topology) -> HttpResponse:
    typed = request.POST.get("name", "").strip()

    def replace() -> str:
        queues = replace_queue.request(request.user, topology, typed_name=typed)
        return f"Replacement requested for {', '.join(queues)}. The worker carries it out."

    return try_action(request, topology, replace, "Queues not replaced.")


@require_POST
@with_topology(Role.OPERATOR)
def topology_record(request: HttpRequest, topology: Topology) -> HttpResponse:
    chosen = next((key for key, _ in TAPS if key == request.POST.get("tap_type")), DEFAULT_TAP)

    def start() -> str:
        provision.start_recording(request.user, topology, tap_type=chosen)
        return "Recording enabled. The list does not include messages that were already waiting."

    return try_action(request, topology, start, "Recording not enabled.")


@require_POST
@with_topology(Role.OPERATOR)
def topology_replace_tap(request: HttpRequest, topology: Topology) -> HttpResponse:
    def replace() -> str:
        replace_tap.replace_tap(request.user, topology)
        return f"{topology.name} now records into a classic queue."

    return try_action(request, topology, replace, "Stream tap not replaced.")


@require_POST
@with_topology(Role.VIEWER)
def topology_verify(request: HttpRequest, topology: Topology) -> HttpResponse:
    try:
        verdict = provision.check(request.user, topology)
    except BrokerError as error:
        return _failed(request, topology, f"Topology not verified. {error}")
    context = {"topology": topology, "broker": topology.broker, "verdict": verdict}
    return render(request, "topology/verdict.html", context)


@require_POST
@with_topology(Role.OPERATOR)
def topology_unbind(request: HttpRequest, topology: Topology) -> HttpResponse:
    destination = request.POST.get("destination", "")

    def unbind() -> str:
        key, typed = request.POST.get("routing_key", ""), request.POST.get("name", "").strip()
        provision.unbind(request.user, topology, key, destination, typed_name=typed)
        return f"{destination} is no longer a destination of this topology."

    return try_action(request, topology, unbind, "Destination not unbound.")


@require_POST
@with_topology(Role.OPERATOR)
def topology_restore(request: HttpRequest, topology: Topology) -> HttpResponse:
    destination = request.POST.get("destination", "")

    def restore() -> str:
        created = restore_binding(request.user, topology, destination)
        return (
            f"The binding of {destination} "
            f"{'is restored' if created else 'already existed'}. RabbitMQ delivers stuck "
            "messages at its next retry, within three minutes."
        )

    return try_action(request, topology, restore, "Binding not restored.")


@require_POST
@with_topology(Role.OPERATOR)
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
        return _back(request, topology)
    except BrokerError as error:
        return _failed(request, topology, f"Topology not deleted. {error}")
    kept = f", {len(done.keeps)} external objects kept" if done.keeps else ""
    messages.success(request, f"{topology.name}: {len(done.deletes)} objects deleted{kept}.")
    return redirect("topology:topologies")


def _standing(topology: Topology, snapshot: Snapshot) -> dict[str, Any]:
    """What of it exists, and what a teardown would do."""
    teardown = provision.teardown_for(topology, snapshot)
    replacements = replace_queue.replacements_for(topology, snapshot)
    return {
        "obstacle": provision.obstacle_for(topology, snapshot),
        "plan": provision.plan_for(topology, snapshot),
        "replacements": replacements,
        "replaceable": sum(not one.refusal for one in replacements),
        "teardown": teardown,
        "deletes": [title(thing) for thing in teardown.deletes],
        "keeps": [title(thing) for thing in teardown.keeps],
        "queues": queue_lines(snapshot, provision.queues_of(topology, snapshot)),
        "destinations": provision.destinations_of(topology, snapshot),
        "missing": [(row, obstacle_to(row, snapshot)) for row in topology.missing_bindings.all()],
        "owned": topology.owned_identities,
        "findings": lines_of(topology, snapshot),
        "remarks": topology.pattern.remarks(topology.parsed, snapshot.definitions),
    }


def _stated(topology: Topology) -> list[tuple[str, str]]:
    """Its parameters as (label, words); the header that others read is only a guess of ours."""
    if not topology.is_read_by_others:
        return topology.stated
    guessed = {field.label for field in topology.pattern.FIELDS if field.name == "due_header"}
    return [(label, "unknown" if label in guessed else words) for label, words in topology.stated]


def _longest(topology: Topology) -> str:
    """In words; "" where new messages cannot be delayed."""
    longest = topology.pattern.longest(topology.parsed)
    return in_words(longest) if longest else ""


def try_action(
    request: HttpRequest, topology: Topology, act: Callable[[], str], failure: str
) -> HttpResponse:
    """Act and show the message that it returns, or the failure with its reason."""
    try:
        messages.success(request, act())
    except Refusal as refusal:
        messages.error(request, f"{failure} {refusal}")
    except BrokerError as error:
        return _failed(request, topology, f"{failure} {error}")
    return _back(request, topology)


def _failed(request: HttpRequest, topology: Topology, sentence: str) -> HttpResponse:
    """Without another look at a broker that just did not answer."""
    messages.error(request, sentence)
    return redirect("topology:topology", slug=topology.slug)


def _back(request: HttpRequest, topology: Topology) -> HttpResponse:
    latest.poll(topology.broker)
    page = reverse("topology:topology", args=[topology.slug])
    return redirect(next_of(request, page))
