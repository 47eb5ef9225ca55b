"""Saving and deleting the views of lists."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from analytics.events import clean
from delayboard import saved_views
from delayboard.models import SearchedList
from delayboard.saved_views import SavedViewError
from delayboard.views.show_refusal import show_refusal
from topology import access
from topology.database import paging
from topology.models import Broker

BROKER_ONLY = (SearchedList.PARKED_MESSAGES, SearchedList.FINDINGS)
# Lists whose address has the broker in its path; Retrying is also a list of all brokers.
_BY_PATH = {
    SearchedList.PARKED_MESSAGES: "parked_messages",
    SearchedList.FINDINGS: "topology:findings",
    SearchedList.RETRYING: "retrying",
}
_BY_PARAMETER = {
    SearchedList.SCHEDULED: "analytics:scheduled",
    SearchedList.DEAD_LETTERS: "dead_letters",
    SearchedList.REPLAYS: "replays",
}


@require_POST
def change_saved_views(request: HttpRequest) -> HttpResponse:
    """Save the filter, order and columns of a list under a name, or delete a saved view."""
    values = {key: clean(value).strip() for key, value in request.POST.items()}
    try:
        searched = SearchedList(values.get("list", ""))
    except ValueError as error:
        raise Http404 from error
    broker = access.choose_brokers(request).chosen
    if broker is None and searched in BROKER_ONLY:
        raise Http404
    number = paging.row_number(values.get("delete", ""))
    if number is not None:
        with show_refusal(request, "Nothing was deleted.", SavedViewError):
            row = saved_views.delete_view(request.user, number)
            messages.success(request, f"The view “{row.name}” is deleted.")
        return redirect(list_url(searched, broker))
    name, query, sort = (values.get(field, "") for field in ("name", "q", "sort"))
    display = saved_views.write_display(searched, values.get("columns", "").split(","), sort)
    with show_refusal(request, "Nothing was saved.", SavedViewError):
        saved_views.save_view(
            request.user, searched, broker, name, query, display, is_shared="shared" in values
        )
        messages.success(request, f"The view “{name}” is saved.")
    return redirect(list_url(searched, broker, query, display))


def list_url(
    searched: SearchedList, broker: Broker | None, query: str = "", display: str = ""
) -> str:
    """The address of a list with this filter and display."""
    parts = [query, display]
    if searched == SearchedList.PARKED_MESSAGES:
        parts[0] = urlencode({"q": query}) if query else ""
    if searched in _BY_PARAMETER:
        address = reverse(_BY_PARAMETER[searched])
        parts.insert(0, urlencode({"broker": broker.slug}) if broker else "")
    else:
        name = _BY_PATH[searched]
        address = reverse(name, args=[broker.slug]) if broker else reverse("retrying_anywhere")
    parts = [part for part in parts if part]
    return address + (f"?{'&'.join(parts)}" if parts else "")
