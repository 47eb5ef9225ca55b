"""The reference page has every operation, and its document is the API's."""

from __future__ import annotations

import pytest

from delayboard.api.site import make_document
from tests.builders import make_user
from tests.site.api_client import api_of
from tests.site.page_setup import signed_in, text_of
from topology.models import Role

pytestmark = pytest.mark.django_db


def test_the_page_has_every_operation() -> None:
    shown = text_of(signed_in(Role.VIEWER).get("/help/api/"))
    for path, methods in make_document()["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}<" in shown
            assert f'id="{operation["operationId"]}"' in shown
    assert "operator on the broker" in shown
    assert "integer or null" in shown
    assert "<script src=" not in shown.replace('<script src="/static', "")


def test_the_document_is_that_of_the_api() -> None:
    api = api_of(make_user("ann", Role.VIEWER), Role.VIEWER)
    document = signed_in(Role.VIEWER).get("/help/api/openapi.json").json()
    assert document == api.get("openapi.json").json()
    assert document["openapi"] == "3.1.0"
