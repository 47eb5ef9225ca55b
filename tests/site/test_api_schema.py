"""schemathesis over the whole OpenAPI document, with each role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from delayboard.api import door
from tests.builders import make_broker, make_pair, make_user
from tests.site.api_client import api_of
from tests.site.page_setup import know
from tests.site.test_api import names_of
from topology.models import Role, Topology

pytestmark = pytest.mark.django_db
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
# Of the broker that one of the roles must not see.
MARKS = (b"okapi", b"secret-exchange")
WHO = ["viewer", "operator", "admin", "elsewhere"]


@pytest.fixture
def pair() -> Topology:
    return make_pair(make_broker(name="Okapi"), name="okapi-orders", delay="15s")


@pytest.fixture(autouse=True)
def one_connection() -> Iterator[None]:
    """A request of a real server closes connections that are not in autocommit, as a test's is."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def check_all(pair: Topology, who: str, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUESTS_PER_MINUTE", 10**9)
    names = names_of(pair)
    there = make_broker(name="There")
    know(there)
    role = Role.ADMIN if who == "elsewhere" else Role[who.upper()]
    where = there if who == "elsewhere" else pair.broker
    secret = api_of(make_user(who, role, where), role).secret
    headers = {"Authorization": f"Bearer {secret}", "Accept-Encoding": "identity"}
    schema = schemathesis.openapi.from_wsgi(
        "/api/v1/openapi.json", get_wsgi_application(), headers=headers
    )
    wrong: list[str] = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @settings(
            max_examples=examples,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
            deadline=None,
            database=None,
            derandomize=True,
        )
        @given(case=operation.as_strategy(), is_known=st.booleans())
        def check(case: Any, is_known: bool) -> None:
            if is_known:
                for name in case.path_parameters:
                    case.path_parameters[name] = str(names[name])
            answer = case.call(headers=headers)
            try:
                case.validate_response(answer, checks=CHECKS, headers=headers)
            except BaseExceptionGroup as failures:
                if not is_busy(answer):
                    wrong.extend(f"{case.method} {case.path}: {one}" for one in failures.exceptions)
            if who == "elsewhere" and any(mark in answer.content.lower() for mark in MARKS):
                wrong.append(f"{case.method} {case.path}: leaks {answer.content!r}")

        check()
    assert not wrong, "\n\n".join(wrong)


def is_busy(answer: Any) -> bool:
    """A broker that does not answer is a documented answer, though a 5xx."""
    return bool(answer.status_code == 503)


@pytest.mark.parametrize("who", WHO)
def test_each_operation_answers_as_documented(
    pair: Topology, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_all(pair, who, 3, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("who", WHO)
def test_each_operation_answers_as_documented_in_full(
    pair: Topology, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_all(pair, who, 100, monkeypatch)
