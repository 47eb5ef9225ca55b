from __future__ import annotations

import re

from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.test import RequestFactory

from delayboard.middleware import SecurityPolicyMiddleware, policy


def directives(text: str) -> dict[str, list[str]]:
    return {name: values for name, *values in (part.split() for part in text.split("; "))}


def answer(template: str) -> HttpResponse:
    """The response to a page of this template, behind the middleware."""

    def view(request: HttpRequest) -> HttpResponse:
        page = engines["django"].from_string(template)
        return HttpResponse(page.render({}, request))

    response = SecurityPolicyMiddleware(view)(RequestFactory().get("/"))
    assert isinstance(response, HttpResponse)
    return response


def test_the_policy_allows_nothing_inline_and_no_other_host() -> None:
    rules = directives(policy())
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == ["'self'"]
    assert rules["img-src"] == ["'self'", "data:"]
    assert rules["frame-ancestors"] == rules["base-uri"] == ["'none'"]
    assert rules["form-action"] == ["'self'"]
    assert "unsafe" not in policy("word")
    assert not re.search(r"https?:|\*", policy("word"))


def test_a_page_gets_the_headers() -> None:
    response = answer("plain")
    assert response["Content-Security-Policy"] == policy()
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Referrer-Policy"] == "same-origin"


def test_a_nonce_is_in_the_policy_only_of_the_page_that_wrote_it() -> None:
    response = answer('<style nonce="{{ request.csp_nonce }}"></style>{{ request.csp_nonce }}')
    nonce, again = re.findall(r'"([\w-]{20,})"></style>([\w-]+)', response.content.decode())[0]
    assert nonce == again
    assert response["Content-Security-Policy"] == policy(nonce)
    assert directives(policy(nonce))["style-src"] == ["'self'", f"'nonce-{nonce}'"]
    assert directives(policy(nonce))["script-src"] == ["'self'"]


def test_every_page_has_a_nonce_of_its_own() -> None:
    first, second = (answer("{{ request.csp_nonce }}").content for _ in range(2))
    assert first != second


def test_a_policy_that_a_view_set_is_kept() -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(headers={"Content-Security-Policy": "sandbox"})

    response = SecurityPolicyMiddleware(view)(RequestFactory().get("/"))
    assert isinstance(response, HttpResponse)
    assert response["Content-Security-Policy"] == "sandbox"
