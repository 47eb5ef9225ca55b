"""The confirmation page of actions that publish or discard messages on a production broker."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from topology import access
from topology.models import Broker
from topology.views.redirect_back import next_of

FIELD = "confirm_broker"


class Effect(NamedTuple):
    """A sentence about what will happen, and the address to go back to instead."""

    sentence: str
    back: str


def confirmed_on_production(
    action: str, describe: Callable[[HttpRequest, Any], Effect]
) -> Callable[[access.View], access.View]:
    """Guard a view that is handed a Broker, or something with a `broker`.

    On a production broker the view runs only when the broker's name was typed. `action` is the
    text of the button.
    """

    def decorate(view: access.View) -> access.View:
        @wraps(view)
        def guarded(request: HttpRequest, subject: Any, **more: Any) -> HttpResponse:
            broker = subject if isinstance(subject, Broker) else subject.broker
            page = confirmation(request, broker, action, describe(request, subject))
            return page or view(request, subject, **more)

        return guarded

    return decorate


def confirmation(
    request: HttpRequest,
    broker: Broker,
    action: str,
    effect: Effect,
    *,
    is_needed: bool = False,
    field: str = FIELD,
) -> HttpResponse | None:
    """Return the page that asks for the broker's name; None when the action may continue.

    With `is_needed` it asks on any broker. An action on two brokers asks in a field for each.
    The page carries what was posted, so that the second request repeats the first one.
    """
    typed = request.POST.get(field, "").strip()
    refusal = access.production_refusal(broker, typed, is_needed=is_needed)
    if not refusal:
        return None
    posted = [(name, value) for name, values in request.POST.lists() for value in values]
    context = {
        "broker": broker,
        "action": action,
        "sentence": effect.sentence,
        "field": field,
        "typed": typed,
        "refusal": refusal if field in request.POST else "",
        "posted": [pair for pair in posted if pair[0] not in (field, "csrfmiddlewaretoken")],
        "back": next_of(request, effect.back),
    }
    return render(request, "delayboard/production.html", context)
