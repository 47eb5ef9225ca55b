"""The firehose of a broker: what it does and costs, its state, switching it on and off."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from analytics.models import Firehose
from analytics.observation import on_the_firehose, untapped
from analytics.recorder import firehose_switch as switch
from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from delayboard.views.show_refusal import show_refusal
from topology import access
from topology.broker.errors import BrokerError
from topology.models import Broker, Role
from topology.views.redirect_back import next_of

# (requested, copying) -> name on the page, and its style.
STATES = {
    (True, True): ("Enabled", "state-ok"),
    (True, False): ("Starting", "state-busy"),
    (True, None): ("Unknown", "state-error"),
    (False, True): ("Enabled by another tool", "state-warn"),
    (False, False): ("Disabled", "state-off"),
    (False, None): ("Unknown", "state-error"),
}


@require_safe
@access.with_broker(Role.VIEWER)
def firehose(request: HttpRequest, broker: Broker) -> HttpResponse:
    row = Firehose.objects.filter(broker=broker).first()
    found = switch.read_state(broker, row)
    state, mark = STATES[row is not None, found.is_copying]
    context = {
        "broker": broker,
        "firehose": row,
        "reading": found,
        "state": state,
        "mark": mark,
        "needs_it": [(one, "entry" in untapped(one)) for one in on_the_firehose(broker)],
        "background_task": BackgroundTask.objects.filter(
            key=task_key("firehose", broker.slug)
        ).first(),
        "may_switch": access.may(request.user, broker, Role.ADMIN),
    }
    return render(request, "delayboard/firehose.html", context)


@require_POST
@access.with_broker(Role.ADMIN)
def firehose_switch(request: HttpRequest, broker: Broker) -> HttpResponse:
    match request.POST.get("switch"):
        case "on":
            typed = request.POST.get("name", "").strip()
            with show_refusal(request, "Firehose not enabled.", switch.Refusal, BrokerError):
                switch.switch_on(request.user, broker, typed_name=typed)
                messages.success(request, f"The firehose of {broker.name} is enabled.")
        case "off":
            with show_refusal(request, "Firehose not disabled.", switch.Refusal, BrokerError):
                sentence = f"Delayboard no longer reads the firehose of {broker.name}."
                if not switch.switch_off(request.user, broker):
                    sentence += (
                        " RabbitMQ still copies messages, because other queues use the trace "
                        "exchange."
                    )
                messages.success(request, sentence)
        case _:
            messages.error(request, "Nothing was changed. The request must be on or off.")
    return redirect(next_of(request, reverse("firehose", args=[broker.slug])))
