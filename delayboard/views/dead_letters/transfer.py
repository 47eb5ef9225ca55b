"""Parked messages as a file: export and import."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from analytics.events import clean
from analytics.views.streaming import download
from delayboard.dead_letters.export_messages import export_audited
from delayboard.dead_letters.import_messages import import_messages
from delayboard.dead_letters.search import QueryError, matching
from delayboard.views.dead_letters.messages import query_of
from topology import access
from topology.content.export_format import FORMS
from topology.models import Broker, Role
from topology.views.uploads import read_upload


@require_safe
@access.with_broker(Role.OPERATOR)
def parked_messages_export(request: HttpRequest, broker: Broker) -> HttpResponse:
    """All that the query in the address means, as a file that is written while it is read."""
    form, query = request.GET.get("as", ""), query_of(request)
    if form not in FORMS:
        raise Http404
    try:
        rows = matching(request.user, broker, query)
    except QueryError as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    lines = export_audited(request.user, broker, form, query, rows)
    answer: Any = download(request, lines, form, f"dead-letters-{broker.slug}")
    return answer  # type: ignore[no-any-return]


@require_POST
@access.with_broker(Role.ADMIN)
def parked_messages_import(request: HttpRequest, broker: Broker) -> HttpResponse:
    """A small file of JSON lines; larger ones go through the command."""
    back = redirect("parked_messages", broker_slug=broker.slug)
    file = read_upload(request, f"import_dead_letters {broker.slug}")
    if file is None:
        return back
    tally = import_messages(request.user, broker, clean(file.name or ""), file)
    for number, sentence in tally.wrong:
        messages.error(request, f"Line {number} was skipped. {sentence}")
    add_message = messages.success if tally.added or not tally.malformed else messages.warning
    add_message(request, tally.summary)
    return back
