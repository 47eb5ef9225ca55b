"""Errors of the API: problem details (RFC 9457) with the sentence that the page shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from django.http import HttpResponse

MEDIA_TYPE = "application/problem+json"
# Statuses of refusals that a client may get from every operation.
STATUSES = (400, 401, 403, 404, 405, 409, 411, 413, 422, 429, 500, 503)


@dataclass(frozen=True)
class Problem(Exception):
    """`errors` has a sentence by the name of a field, for wrong input.

    `is_unknown`: something may have been changed.
    """

    status: int
    detail: str
    errors: Mapping[str, str] = field(default_factory=dict)
    is_unknown: bool = False


class ProblemResponse(HttpResponse):
    is_unknown = False


def answer_problem(problem: Problem) -> ProblemResponse:
    values: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.errors:
        values["errors"] = dict(problem.errors)
    if problem.is_unknown:
        values["is_unknown"] = True
    answer = ProblemResponse(
        json.dumps(values, ensure_ascii=False), status=problem.status, content_type=MEDIA_TYPE
    )
    answer.is_unknown = problem.is_unknown
    if problem.status == 503:
        answer["Retry-After"] = "10"
    return answer
