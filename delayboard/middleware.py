"""The security headers of every page, addresses that no page can answer, the use of sessions,
the grants of the user.

The policy allows nothing inline and no other host.
"""

from __future__ import annotations

import secrets

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from structlog.contextvars import bind_contextvars

from delayboard.api.problem import Problem, answer_problem
from delayboard.sign_in.sessions import note_use
from delayboard.sign_in.time_zone import activate
from topology.access import remember_grants


class Nonce:
    """One random word for a page, made when a template first writes it."""

    def __init__(self) -> None:
        self.value = ""

    def __str__(self) -> str:
        self.value = self.value or secrets.token_urlsafe(16)
        return self.value


class SecurityPolicyMiddleware(MiddlewareMixin):
    """Sets the headers; `request.csp_nonce` enters the policy only when a template wrote it.

    Answers 400 to a NUL in the query string: PostgreSQL has no text with it to compare with.
    """

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        request.csp_nonce = Nonce()  # type: ignore[attr-defined]
        query = request.META.get("QUERY_STRING", "")
        if "\0" in query or "%00" in query:
            sentence = "The address contains a NUL character, which no name allows."
            if request.path.startswith("/api/"):
                return answer_problem(Problem(400, sentence))
            return HttpResponseBadRequest(sentence, content_type="text/plain; charset=utf-8")
        return None

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        nonce = getattr(request, "csp_nonce", None)
        used = nonce.value if isinstance(nonce, Nonce) else ""
        response.headers.setdefault("Content-Security-Policy", policy(used))
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers.setdefault("Referrer-Policy", "same-origin")
        return response


class SessionUseMiddleware(MiddlewareMixin):
    """Restarts a session's idle time with each request by a person.

    Requests that a page makes by itself carry a mark, and do not keep a session alive.
    """

    def process_request(self, request: HttpRequest) -> None:
        if "X-Refresh" not in request.headers:
            note_use(request.session)


class TimeZoneMiddleware(MiddlewareMixin):
    """Shows times in the time zone of the user."""

    def process_request(self, request: HttpRequest) -> None:
        activate(request)


class GrantsMiddleware(MiddlewareMixin):
    """Reads the user's grants once for a page, whose parts need them five times.

    Lines of the log have the user's id from here on.
    """

    def process_view(self, request: HttpRequest, view: object, *_: object) -> None:
        if getattr(view, "login_required", True):
            bind_contextvars(actor_id=request.user.pk)
            if request.method in ("GET", "HEAD"):
                remember_grants(request.user)


def policy(nonce: str = "") -> str:
    """The content security policy; style elements that carry `nonce` are allowed by it."""
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            f"style-src 'self' 'nonce-{nonce}'" if nonce else "style-src 'self'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ]
    )
