"""The search of the header: pages, actions and objects by name."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from analytics.events import clean
from delayboard.now.navigation import LONGEST_TEXT, Rights, find_places
from topology import access, redaction
from topology.models import Role


@require_safe
def search(request: HttpRequest) -> HttpResponse:
    """Over the chosen broker, or all that the user may see."""
    choice = access.choose_brokers(request)
    brokers = choice.shown
    text = clean(request.GET.get("q", "").strip())[:LONGEST_TEXT]
    operated = access.visible_brokers(request.user, Role.OPERATOR)
    rights = Rights(
        operated=frozenset(operated.values_list("pk", flat=True)),
        may_administer=access.may(request.user, None, Role.ADMIN),
        may_audit=access.may_audit(request.user),
    )
    rules = redaction.rules_by_broker(request.user, brokers)
    found = find_places(text, brokers, rules, rights)
    context = {"broker": choice.chosen, "text": text, "results": found}
    return render(request, "delayboard/search.html", context)
