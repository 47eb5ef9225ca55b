"""The pages of failed requests: what the database or a disk refuses, and every other error."""

from __future__ import annotations

import logging
import sys

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views.defaults import server_error

from topology.database.errors import Trouble, explain

logger = logging.getLogger(__name__)


def show_server_error(request: HttpRequest) -> HttpResponse:
    """Django's handler500. It writes one line, not a traceback, where the cause is known."""
    trouble = explain(sys.exc_info()[1])
    if trouble is None:
        return server_error(request)
    account = getattr(getattr(request, "_cached_user", None), "username", "") or "unknown account"
    logger.warning("%s %s by %s failed: %s", request.method, request.path, account, trouble)
    answer = refusal(request, trouble)
    # Django's own mark for a response that needs no entry in the log any more.
    answer._has_been_logged = True  # type: ignore[attr-defined]
    return answer


def refusal(request: HttpRequest, trouble: Trouble) -> HttpResponse:
    """The page for it; made without the database, so without the account and its menus."""
    if not request.accepts("text/html"):
        answer = HttpResponse(str(trouble), content_type="text/plain; charset=utf-8")
    else:
        is_reading = request.method in ("GET", "HEAD")
        context = {"trouble": trouble, "is_reading": is_reading}
        answer = HttpResponse(render_to_string("database_error.html", context))
    answer.status_code = 503
    answer["Retry-After"] = "10"
    answer["Cache-Control"] = "no-store"
    return answer
