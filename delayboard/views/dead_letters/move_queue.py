"""The page that moves all messages of a queue with a shovel, and shows its progress."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from analytics.events import clean
from delayboard.dead_letters import shovel
from delayboard.views.confirm_production import Effect, confirmed_on_production
from delayboard.views.show_refusal import show_refusal
from topology import access
from topology.broker.errors import BrokerError
from topology.models import Broker, Role


@never_cache
@require_safe
@access.with_broker(Role.OPERATOR)
def move_queue(request: HttpRequest, broker: Broker) -> HttpResponse:
    """The form, or the progress of the shovel. Only this page asks the broker about shovels."""
    name = clean(request.GET.get("name", ""))
    context: dict[str, Any] = {"broker": broker, "name": name}
    try:
        context["move"] = shovel.read_move(broker, name)
    except (shovel.MoveRefused, BrokerError) as error:
        context["refusal"] = str(error)
    return render(request, "delayboard/move_queue.html", context)


def _describe_move(request: HttpRequest, broker: Broker) -> Effect:
    name, target = _names(request)
    sentence = f"All messages of the queue {name} are moved to the queue {target}."
    return Effect(sentence, _page(broker, name))


@require_POST
@access.with_broker(Role.OPERATOR)
@confirmed_on_production("Move messages", _describe_move)
def move_queue_start(request: HttpRequest, broker: Broker) -> HttpResponse:
    name, target = _names(request)
    with show_refusal(request, "No message was moved.", shovel.MoveRefused, BrokerError):
        shovel.start_move(request.user, broker, name, target)
        messages.success(request, f"The shovel moves the messages of “{name}” to “{target}”.")
    return redirect(_page(broker, name))


@require_POST
@access.with_broker(Role.OPERATOR)
def move_queue_stop(request: HttpRequest, broker: Broker) -> HttpResponse:
    name, _ = _names(request)
    with show_refusal(request, "The shovel was not stopped.", BrokerError):
        shovel.stop_move(request.user, broker, name)
        messages.success(request, "The shovel was deleted. Messages not yet moved stay queued.")
    return redirect(_page(broker, name))


def _names(request: HttpRequest) -> tuple[str, str]:
    return clean(request.POST.get("name", "")), clean(request.POST.get("target", ""))


def _page(broker: Broker, name: str) -> str:
    return f"{reverse('move_queue', args=[broker.slug])}?{urlencode({'name': name})}"
