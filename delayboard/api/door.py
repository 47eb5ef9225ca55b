"""The one view of the API: token, rate limit, idempotency; then the operation.

django-ninja is loaded by the first request, so no process that serves none pays for it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from datetime import timedelta
from typing import Any

from django import db
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.urls.converters import StringConverter
from django.utils import timezone
from django.utils.cache import set_response_etag
from django.utils.http import parse_etags
from django.views.decorators.csrf import csrf_exempt
from structlog.contextvars import bind_contextvars

from delayboard.api.problem import Problem, ProblemResponse, answer_problem
from delayboard.models import ApiAnswer, ApiToken
from delayboard.sign_in.tokens import TokenError, find_token, take_request
from topology.database.errors import explain
from topology.models.secrets import DecryptionError, open_secret, seal_secret

logger = logging.getLogger(__name__)

REQUESTS_PER_MINUTE = 600
LONGEST_KEY = 255
KEPT_HEADERS = ("Content-Type", "Location")
KEPT = timedelta(days=1)


class AnyPathConverter(StringConverter):
    """Unlike `path` also nothing, and a line's end: each gets a problem, no page."""

    regex = r"[\s\S]*"


@csrf_exempt
@login_not_required
def api(request: HttpRequest, path: str) -> HttpResponse:
    """Sign-ins of browsers do not count, so no page of another site can send a change."""
    try:
        return _answer(request, path)
    except TokenError as error:
        answer = answer_problem(Problem(401, str(error)))
        answer["WWW-Authenticate"] = "Bearer"
        return answer
    except (DecryptionError, db.Error) as error:
        trouble = error if isinstance(error, DecryptionError) else explain(error)
        if trouble is None:
            raise
        logger.warning("%s %s failed: %s", request.method, request.path, trouble)
        # The change may be made, and only its answer is not stored.
        return answer_problem(Problem(503, str(trouble), is_unknown=not _is_read(request)))


def _answer(request: HttpRequest, path: str) -> HttpResponse:
    """Raises TokenError."""
    token = find_token(request)
    bind_contextvars(actor_id=token.user_id)
    request.user = token.user
    request.api_token = token  # type: ignore[attr-defined]
    if refused := _refuse_too_many(token):
        return refused
    if "Transfer-Encoding" in request.headers:
        # It would be read whole before its length is known.
        return answer_problem(Problem(411, "Send the length of the body in Content-Length."))
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if int(request.META.get("CONTENT_LENGTH") or 0) > most:
        sentence = f"The request is larger than {most // 1024**2} MiB. Send it in parts."
        return answer_problem(Problem(413, sentence))
    key = request.headers.get("Idempotency-Key", "")
    if _is_read(request) or not key:
        return _run(request, path)
    return _run_once(request, path, token, key)


def _is_read(request: HttpRequest) -> bool:
    return request.method in ("GET", "HEAD")


def _run(request: HttpRequest, path: str) -> HttpResponse:
    from delayboard.api.site import find_view

    answer = find_view(request, path)
    # An operation that answers bodies of messages has set it.
    has_body = "Cache-Control" in answer
    answer["Cache-Control"] = "no-store"
    is_read = request.method == "GET" and answer.status_code == 200
    if is_read and not answer.streaming and not has_body:
        # A client may keep it, and asks each time whether it is still right.
        answer["Cache-Control"] = "private, no-cache"
        set_response_etag(answer)
        if answer["ETag"] in parse_etags(request.headers.get("If-None-Match", "")):
            return HttpResponseNotModified(headers=answer.headers)
    return answer


def _refuse_too_many(token: ApiToken) -> HttpResponse | None:
    if take_request(token, REQUESTS_PER_MINUTE):
        return None
    sentence = (
        f"The token “{token.name}” sent more than {REQUESTS_PER_MINUTE} requests in a minute. "
        "Wait until the next minute."
    )
    answer = answer_problem(Problem(429, sentence))
    answer["Retry-After"] = str(60 - int(time.time()) % 60)
    return answer


def _run_once(request: HttpRequest, path: str, token: ApiToken, key: str) -> HttpResponse:
    """Store the answer for a day, and give it to each repeat.

    A problem is stored only where something may have been changed: others can be tried again.
    """
    if len(key) > LONGEST_KEY or not key.isprintable():
        return answer_problem(
            Problem(400, f"Idempotency-Key has at most {LONGEST_KEY} characters.")
        )
    asked = f"{request.method} {request.get_full_path()}\n".encode() + request.body
    digest = hashlib.sha256(asked).hexdigest()
    ApiAnswer.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    try:
        with transaction.atomic():
            row = ApiAnswer.objects.create(token=token, key=key, request=digest)
    except IntegrityError:
        first = ApiAnswer.objects.filter(token=token, key=key).first()
        if first is None:
            return _wait(
                "The first request with this Idempotency-Key was just refused. Send it again."
            )
        return _repeat(first, digest)
    answer = _run(request, path)
    if isinstance(answer, ProblemResponse) and not answer.is_unknown:
        row.delete()
        return answer
    headers = {name: answer[name] for name in KEPT_HEADERS if name in answer}
    values: dict[str, Any] = {"status": answer.status_code, "headers": headers}
    # It may have a secret that is shown once.
    body = seal_secret(answer.content.decode())
    ApiAnswer.objects.filter(pk=row.pk).update(**values, body=body)
    return answer


def _repeat(row: ApiAnswer, digest: str) -> HttpResponse:
    if row.request != digest:
        sentence = "Another request has this Idempotency-Key. Send a new key."
        return answer_problem(Problem(422, sentence))
    if row.status is None:
        return _wait(
            "The first request with this Idempotency-Key has no answer yet, or its process ended. "
            "Check what it changed before you send a new key."
        )
    answer = HttpResponse(open_secret(row.body), status=row.status, headers=row.headers)
    answer["Idempotent-Replayed"] = "true"
    return answer


def _wait(sentence: str) -> HttpResponse:
    """Unlike other problems 409: the same request may get another answer in a second."""
    answer = answer_problem(Problem(409, sentence))
    answer["Retry-After"] = "1"
    return answer
