"""Saving and deleting the searches of lists."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from analytics.events import clean
from delayboard import saved_searches
from delayboard.models import SearchedList
from delayboard.saved_searches import SavedSearchError
from delayboard.views.show_refusal import show_refusal
from topology import access
from topology.database import paging
from topology.models import Broker, Role


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def change_saved_searches(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Save the query of a list under a name, or delete a saved one."""
    name, query = (clean(request.POST.get(field, "")).strip() for field in ("name", "q"))
    number = paging.row_number(request.POST.get("delete", ""))
    try:
        searched = SearchedList(request.POST.get("list", SearchedList.PARKED_MESSAGES))
    except ValueError as error:
        raise Http404 from error
    failure = f"Nothing was {'deleted' if number else 'saved'}."
    with show_refusal(request, failure, SavedSearchError):
        if number is None:
            saved_searches.save_search(request.user, broker, searched, name, query)
            messages.success(request, f"The search “{name}” is saved.")
        else:
            row = saved_searches.delete_search(request.user, broker, number)
            messages.success(request, f"The search “{row.name}” is deleted.")
    return redirect(list_url(broker, searched, query if number is None else ""))


def list_url(broker: Broker, searched: str, query: str) -> str:
    """The address of a list with this search."""
    if searched == SearchedList.SCHEDULED:
        slug = urlencode({"broker": broker.slug})
        return reverse("analytics:scheduled") + f"?{slug}" + (f"&{query}" if query else "")
    if searched == SearchedList.FINDINGS:
        return reverse("topology:findings", args=[broker.slug]) + (f"?{query}" if query else "")
    parked = reverse("parked_messages", args=[broker.slug])
    return parked + (f"?{urlencode({'q': query})}" if query else "")
