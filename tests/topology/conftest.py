"""For the tests of both packages: cheap passwords, and laws without a stop-watch."""

from __future__ import annotations

import pytest
from hypothesis import settings as laws
from pytest_django import Settings

laws.register_profile("delayboard", deadline=None)
laws.load_profile("delayboard")


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Settings) -> None:
    """Make an account in a moment: what a password costs is not what is tested here."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
