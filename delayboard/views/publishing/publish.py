"""Publishing: the form with its prediction, the sent message followed until it arrives."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from analytics.events import clean
from analytics.models import Firehose
from analytics.recorder import firehose_switch as switch
from delayboard.dead_letters.retrying import waits_in_work_queue
from delayboard.forms.publish import PublishForm
from delayboard.models import Publication, PublishJob, PublishTemplate
from delayboard.models.background_task import PUBLISH_JOBS, is_missing
from delayboard.publishing.form_offers import (
    Offers,
    TemplateError,
    delete_template,
    make_offers,
    save_template,
)
from delayboard.publishing.publish_job import make_job_version, read_id_base, request_job, stop_job
from delayboard.publishing.publish_message import (
    AlreadySent,
    Observer,
    OutgoingMessage,
    Prediction,
    find_observer,
    predict_message,
    send,
)
from delayboard.publishing.track import make_steps, track, track_all
from delayboard.views.confirm_production import Effect, confirmation
from delayboard.views.publishing.publish_start import clone_peeked, read_start
from delayboard.views.show_refusal import show_refusal
from topology import access, snapshots
from topology.broker.errors import BrokerError, alarm_sentence
from topology.broker.properties.field_values import FieldError
from topology.content.text import count_text
from topology.models import Broker, Role, State, Topology
from topology.operations.ownership import Refusal
from topology.operations.provision import start_recording

# Buttons that publish.
SENDING = {"send", "send_many"}
# Most templates that the page lists.
MOST_TEMPLATES = 100


def publish(request: HttpRequest) -> HttpResponse:
    """GET shows the form; POST with `predict` the prediction, with `send` publishes too."""
    brokers = access.visible_brokers(request.user, Role.OPERATOR)
    start = clone_peeked(request) if "clone" in request.POST else read_start(request)
    data = None if "clone" in request.POST else request.POST or None
    form = PublishForm(data, brokers=brokers, initial=start.values)
    if data is None:
        for note in start.notes:
            messages.warning(request, note)
    context: dict[str, Any] = {"form": form, "broker": access.choose_brokers(request).chosen}
    if "format" in request.POST:
        form.format_body()
    elif "save_template" in request.POST:
        return _saved_template(request, form, context)
    elif data is not None and "more" not in data and form.is_valid():
        broker, outgoing = form.chosen_broker, form.outgoing()
        access.require(request.user, broker, Role.OPERATOR)
        known = snapshots.fresh(broker)
        context |= {"broker": broker, "outgoing": outgoing, "latest": known}
        if known.snapshot is None or known.error:
            messages.error(request, f"Nothing was published. {known.error}")
            context["refusal"] = known.error
        elif known.snapshot.alarms and not SENDING.isdisjoint(request.POST):
            # A publish that an alarm holds up may be taken all the same when the alarm ends.
            sentence = alarm_sentence(known.snapshot.alarms)
            messages.error(request, f"Nothing was published. {sentence}")
        elif form.check_target(known.snapshot.definitions):
            prediction = predict_message(broker, known.snapshot, outgoing)
            context["prediction"] = prediction
            observer = find_observer(broker, outgoing.topology, outgoing.target, prediction)
            if "enable" in request.POST and observer.topology:
                _enable(request, observer.topology)
                observer = find_observer(broker, outgoing.topology, outgoing.target, prediction)
            missing = _find_missing(request, broker, observer) if prediction.is_good else ""
            context |= {"observer": observer, "missing": missing}
            if "send" in request.POST or ("send_many" in request.POST and form.check_many()):
                return _published(request, form, outgoing, prediction, context)
    return _page(request, form, context)


def _find_missing(request: HttpRequest, broker: Broker, observer: Observer) -> str:
    """What would observe the delivery: "recording", "firehose", "ask" for the page of the firehose,
    or "" for nothing."""
    topology = observer.topology
    if topology is None or not observer.unobservable_why or topology.state != State.APPLIED:
        return ""
    could = {tap.phase for tap in topology.pattern.taps(topology.parsed)}
    if topology.is_recordable and "exit" in could:
        return "recording"
    if Firehose.objects.filter(broker=broker).exists() or waits_in_work_queue(topology):
        return ""
    may_switch = access.may(request.user, broker, Role.ADMIN) and not broker.is_production
    return "firehose" if may_switch else "ask"


def _enable(request: HttpRequest, topology: Topology) -> None:
    """Recording of the topology, or the firehose of its virtual host; the form stays as it is."""
    if request.POST["enable"] == "firehose":
        access.require(request.user, topology.broker, Role.ADMIN, request=request)
        with show_refusal(request, "Firehose not enabled.", switch.Refusal, BrokerError):
            switch.switch_on(request.user, topology.broker)
            messages.success(request, "Firehose enabled.")
        return
    access.require(request.user, topology.broker, Role.OPERATOR, request=request)
    with show_refusal(request, "Recording not enabled.", Refusal, BrokerError):
        start_recording(request.user, topology)
        messages.success(request, "Recording enabled.")


def _page(request: HttpRequest, form: PublishForm, context: dict[str, Any]) -> HttpResponse:
    choice = access.choose_brokers(request)
    operated = access.visible_brokers(request.user, Role.OPERATOR)
    templates = PublishTemplate.objects.filter(broker__in=operated)
    rows = Publication.objects.filter(broker__in=choice.shown).select_related("broker", "topology")
    recent = list(rows[:10])
    jobs = PublishJob.objects.filter(broker__in=choice.shown)
    context |= {
        "shows_brokers": choice.only is None,
        "jobs": jobs.select_related("work", "topology", "broker")[:5],
        "recent": list(zip(recent, track_all(recent, datetime.now(UTC)), strict=True)),
        "templates": templates.select_related("broker", "created_by")[:MOST_TEMPLATES],
        "may_publish": operated.exists(),
        "offers": _offers(form),
        "time_zone": timezone.get_current_timezone_name(),
        "has_brokers": bool(choice.visible),
    }
    return render(request, "delayboard/publish.html", context)


def _saved_template(
    request: HttpRequest, form: PublishForm, context: dict[str, Any]
) -> HttpResponse:
    name = clean(request.POST.get("template_name", "")).strip()
    try:
        row = save_template(request.user, form.typed_broker, name, form.typed)
    except TemplateError as error:
        messages.error(request, f"The template was not saved. {error}")
        return _page(request, form, context)
    messages.success(request, f"The template “{name}” is saved. All operators can use it.")
    return redirect(f"{reverse('publish')}?template={row.pk}")


@require_POST
def publish_template_delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Any operator of its broker may delete a shared template."""
    brokers = access.visible_brokers(request.user, Role.OPERATOR)
    row = get_object_or_404(PublishTemplate.objects.filter(broker__in=brokers), pk=pk)
    delete_template(request.user, row)
    messages.success(request, f"The template “{row.name}” is deleted.")
    return redirect("publish")


@require_safe
def publication(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    rows = Publication.objects.select_related("broker", "topology", "user")
    row = get_object_or_404(rows, pk=pk)
    access.require(request.user, row.broker, Role.VIEWER)
    followed = track(row, datetime.now(UTC))
    context = {
        "publication": row,
        "broker": row.broker,
        "track": followed,
        "steps": make_steps(row, followed.observation),
        "may_copy": access.may(request.user, row.broker, Role.OPERATOR),
    }
    return render(request, "delayboard/publication.html", context)


def _offers(form: PublishForm) -> Offers:
    """The offers of the form from what this process knows of the chosen broker: the page waits for
    nothing.
    """
    topology = form.chosen("topology")
    broker = topology.broker if isinstance(topology, Topology) else form.chosen("broker")
    known = snapshots.latest(broker.pk) if broker is not None else None
    if known is None or known.snapshot is None:
        return Offers()
    through = topology if isinstance(topology, Topology) else None
    exchange = str(form["exchange"].value() or "")
    return make_offers(known.snapshot.definitions, through, exchange)


def _published(
    request: HttpRequest,
    form: PublishForm,
    outgoing: OutgoingMessage,
    prediction: Prediction,
    context: dict[str, Any],
) -> HttpResponse:
    """Publishes the message, or requests the job of many, once a production broker is confirmed."""
    broker, data = form.chosen_broker, form.cleaned_data
    access.require(request.user, broker, Role.OPERATOR, request=request)
    is_many = "send_many" in request.POST
    what = f"Up to {count_text(data['count'])} messages are" if is_many else "One message is"
    effect = Effect(f"{what} published in the virtual host {broker.vhost}.", reverse("publish"))
    action = "Publish many messages" if is_many else "Publish message"
    if page := confirmation(request, broker, action, effect):
        return page
    try:
        if is_many:
            numbers = {"number": data["count"], "rate": data["rate"]}
            request_job(request.user, broker, outgoing, prediction, **numbers)
        else:
            send(request.user, broker, outgoing, prediction)
    except AlreadySent:
        done = "job was already requested" if is_many else "message was already published"
        messages.warning(request, f"The {done}. This page shows its status.")
    except FieldError as error:
        form.add_error("headers", str(error))
        return _page(request, form, context)
    except Refusal as error:
        messages.error(request, f"Nothing was published. {error}")
        return _page(request, form, context)
    return redirect("publish_job" if is_many else "publication", pk=outgoing.id)


@require_safe
def publish_job(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    job = _job(request, pk, Role.VIEWER)
    context = {
        "job": job,
        "broker": job.broker,
        "id_base": read_id_base(job),
        "live_version": make_job_version(job),
        "may_operate": access.may(request.user, job.broker, Role.OPERATOR),
        "worker_is_missing": is_missing(PUBLISH_JOBS),
    }
    return render(request, "delayboard/publish_job.html", context)


@require_POST
def publish_job_stop(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    if not stop_job(request.user, _job(request, pk, Role.OPERATOR)):
        messages.error(request, "The job is not stopped, because it has ended.")
    return redirect("publish_job", pk=pk)


def _job(request: HttpRequest, pk: uuid.UUID, role: Role) -> PublishJob:
    rows = PublishJob.objects.select_related("broker", "topology", "work", "created_by")
    job = get_object_or_404(rows, pk=pk)
    access.require(request.user, job.broker, role)
    return job
