"""The API's operations under one address, their errors, and the OpenAPI document."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import Resolver404, URLResolver
from django.urls.resolvers import RoutePattern
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from ninja.operation import Operation
from ninja.security import HttpBearer

from analytics.importing.sources import Refused
from analytics.log import LogError
from analytics.mappings.mapping import MappingError
from analytics.nightly import DayRefused
from analytics.results.annotations import AnnotationError
from analytics.scheduled.queries.listing import AmbiguousId
from analytics.search.query import QueryError
from delayboard.alerts.messages import AddressRefused
from delayboard.api.problem import MEDIA_TYPE, STATUSES, Problem, answer_problem
from delayboard.api.schemas import ProblemDetails
from delayboard.api.views import (
    brokers,
    dead_letters,
    messages,
    publications,
    replays,
    reports,
    system,
    topologies,
    webhooks,
)
from delayboard.dead_letters.discard import ChangeError
from delayboard.dead_letters.parked.park_request import ParkError
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.options import OptionError
from delayboard.dead_letters.replay.verdicts import BrokerUnknown
from topology.broker.errors import Blocked, BrokerError, Unreachable
from topology.broker.properties.field_values import FieldError
from topology.database.errors import explain
from topology.delays import MomentError
from topology.management.exit_codes import BadInput
from topology.models.read_only import ReadOnly
from topology.operations.ownership import Refusal
from topology.patterns.pattern import ParamsError

logger = logging.getLogger(__name__)

VERSION = "1"
NOT_FOUND = "It does not exist, or the token has no access. Check the address and the token."
DESCRIPTION = (
    "Everything that the pages of Delayboard do, for programs. Send a token with each request: "
    "`Authorization: Bearer …`. Times are ISO 8601 in UTC, `_ms` are milliseconds. Lists have "
    "`next`: send it as `after` for the next page. A change with an `Idempotency-Key` is made "
    "once, and repeats of the request get the same answer for a day."
)
# Class of an error -> status, the first that fits; the sentence is the error's own.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (PermissionDenied, 403),
    (ReadOnly, 403),
    (BrokerUnknown, 503),
    (BrokerError, 503),
    (QueryError, 422),
    (AmbiguousId, 422),
    (FieldError, 422),
    (MomentError, 422),
    (DayRefused, 422),
    (AnnotationError, 422),
    (MappingError, 422),
    (Refused, 422),
    (LogError, 503),
    (AddressRefused, 422),
    (BadInput, 422),
    (Refusal, 409),
    (BatchError, 409),
    (ParkError, 409),
    (ChangeError, 409),
)


class _Token(HttpBearer):
    """For the document: delayboard/api/door.py has checked the token."""

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return request.user


class Api(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__

    def on_exception(self, request: HttpRequest, error: Any) -> HttpResponse:
        return answer_problem(_make_problem(request, error))


def _make_problem(request: HttpRequest, error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, ValidationError):
        wrong = {".".join(map(str, one["loc"][1:])) or "body": one["msg"] for one in error.errors}
        return Problem(422, "The request is not valid. The field “errors” says why.", wrong)
    if isinstance(error, (OptionError, ParamsError)):
        named = {name: text for name, text in error.problems.items() if name}
        return Problem(422, " ".join(error.problems.values()), named)
    if isinstance(error, HttpError):
        return Problem(error.status_code, "The body is not JSON.")
    if isinstance(error, Http404):
        # Django's own sentence is about classes.
        sentence = str(error)
        is_ours = sentence and not sentence.endswith("matches the given query.")
        return Problem(404, sentence if is_ours else NOT_FOUND)
    is_read = request.method in ("GET", "HEAD")
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), None)
    if status is not None:
        # Before its first change nobody answered, or a repeat does only what is missing.
        is_sure = is_read or isinstance(error, (BrokerUnknown, Unreachable, Blocked))
        return Problem(status, str(error), is_unknown=status == 503 and not is_sure)
    if trouble := explain(error):
        logger.warning("%s %s failed: %s", request.method, request.path, trouble)
        return Problem(503, str(trouble), is_unknown=not is_read)
    logger.error("%s %s failed.", request.method, request.path, exc_info=error)
    return Problem(500, "Delayboard failed. Its log has the cause.", is_unknown=not is_read)


ROUTERS: dict[str, Any] = {
    "Brokers": brokers.router,
    "Topologies": topologies.router,
    "Waiting messages": messages.router,
    "Publications": publications.router,
    "Dead letters": dead_letters.router,
    "Replays": replays.router,
    "Reports": reports.router,
    "Webhooks": webhooks.router,
    "System": system.router,
}


@lru_cache(maxsize=1)
def make_api() -> tuple[Api, URLResolver]:
    made = Api(
        title="Delayboard",
        version=VERSION,
        description=DESCRIPTION,
        openapi_url=None,
        auth=_Token(),
        urls_namespace="api",
    )
    for tag, router in ROUTERS.items():
        made.add_router("", router, tags=[tag])
    return made, URLResolver(RoutePattern(""), made.urls[0])


def find_view(request: HttpRequest, path: str) -> HttpResponse:
    """The answer of the operation at this path."""
    _, resolver = make_api()
    if path == "openapi.json" and request.method in ("GET", "HEAD"):
        return JsonResponse(make_document())
    try:
        match = resolver.resolve(path)
    except Resolver404:
        return answer_problem(Problem(404, NOT_FOUND))
    view: Callable[..., HttpResponse] = match.func
    try:
        answer = view(request, *match.args, **match.kwargs)
    except Http404:
        return answer_problem(Problem(404, NOT_FOUND))
    if answer.status_code == 405:
        refused = answer_problem(Problem(405, f"Use {answer['Allow']} here."))
        refused["Allow"] = answer["Allow"]
        return refused
    return answer


@lru_cache(maxsize=1)
def make_document() -> dict[str, Any]:
    """The OpenAPI 3.1 document, with the problems that each operation may answer."""
    api, _ = make_api()
    document: dict[str, Any] = dict(api.get_openapi_schema(path_prefix="api/v1/"))
    schemas = document["components"]["schemas"]
    schemas["Problem"] = ProblemDetails.model_json_schema()
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for methods in document["paths"].values():
        for method, operation in methods.items():
            for status in STATUSES:
                operation["responses"][status] = {"description": "Problem", "content": content}
            header = _ETAG if method == "get" else _KEY
            operation.setdefault("parameters", []).append(header)
            if method == "get":
                operation["responses"][304] = {"description": "Not modified"}
                operation["responses"][200]["headers"] = {"ETag": {"schema": {"type": "string"}}}
    return document


_ETAG = {
    "in": "header",
    "name": "If-None-Match",
    "required": False,
    "schema": {"type": "string", "pattern": "^[!-~]+$"},
    "description": "The `ETag` of an earlier answer. The answer is 304 while nothing is changed.",
}
_KEY = {
    "in": "header",
    "name": "Idempotency-Key",
    "required": False,
    "schema": {"type": "string", "maxLength": 255, "pattern": "^[!-~]+$"},
    "description": "Any text of your own. The change is made once, also if you repeat the request.",
}
