"""A real provider of OpenID Connect (npm's oidc-provider), and what signs a person in there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from runpy import run_path
from typing import Any
from unittest.mock import patch
from urllib.parse import urljoin

import requests
from django.core.cache import cache
from django.test import Client
from pytest_django import Settings

from delayboard import environment
from tests.outside.client_programs import json_lines, node

SECRET = "a secret of the test"


@contextmanager
def running_provider(site: str, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The issuer of a provider whose people have these groups."""
    with json_lines(node("provider.js", site, json.dumps(groups))) as lines:
        yield str(lines[0]["issuer"])


def configure(settings: Settings, issuer: str, *, secret: str = SECRET) -> None:
    """Read the settings with these variables in the environment, and take them over."""
    cache.clear()
    variables = {
        "OIDC_ISSUER": issuer,
        "OIDC_NAME": "Company",
        "OIDC_CLIENT_ID": "delayboard",
        "OIDC_CLIENT_SECRET": secret,
    }
    with patch.dict(os.environ, variables):
        found = run_path(str(Path(environment.__file__).with_name("settings.py")))
    for name in ("OIDC_ISSUER", "OIDC_NAME", "OIDC_CLIENT_ID", "SOCIALACCOUNT_PROVIDERS"):
        setattr(settings, name, found[name])


class Person:
    """A browser at the provider, without JavaScript, and its session on the site."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.site = Client()
        self._there = requests.Session()

    def sign_in(self, query: str = "", *, aborts: bool = False) -> Any:
        """Follow each page of the provider; returns the site's answer to what comes back."""
        answer = self.site.get(f"/login/provider/{query}")
        if answer.status_code != 302:
            return answer
        address = answer["Location"]
        while not address.startswith("http://testserver/"):
            found = self._there.get(address, allow_redirects=False, timeout=10)
            if found.is_redirect:
                address = urljoin(address, found.headers["Location"])
            elif aborts:
                (path,) = re.findall(r'href="([^"]*/abort)"', found.text)
                address = urljoin(address, path)
            else:
                address = self._post(address, found.text)
        return self.site.get(address)

    def _post(self, address: str, page: str) -> str:
        (action,) = re.findall(r'<form[^>]*action="([^"]+)"', page)
        hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page)
        fields = {**dict(hidden), "login": self.name, "password": "any"}
        posted = self._there.post(
            urljoin(address, action), data=fields, allow_redirects=False, timeout=10
        )
        return urljoin(address, posted.headers["Location"])
