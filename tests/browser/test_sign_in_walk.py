"""Sign-in in a browser: by a real provider and out of it, by a passkey, by a code."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.core.cache import cache
from playwright.sync_api import Browser, Page, expect
from pytest_django import Settings

from delayboard.models import GroupRole
from tests.browser.conftest import PATIENCE_MS
from tests.builders import make_broker, make_user
from tests.outside.oidc import configure, running_provider
from topology.models import Role

PASSWORD = "a long enough password"


@pytest.fixture
def local(browser: Browser, site_url: str) -> Iterator[Page]:
    """A page at localhost, which needs no TLS for passkeys, on a device that has them."""
    cache.clear()
    context = browser.new_context(base_url=site_url.replace("127.0.0.1", "localhost"))
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    device = context.new_cdp_session(page)
    device.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    device.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    yield page
    context.close()


def sign_out(page: Page) -> None:
    page.locator(".menu-account > summary").click()
    page.get_by_role("button", name="Sign out").click()


def sign_in(page: Page) -> None:
    page.goto("/login/")
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


def test_a_provider_signs_in_with_a_mapped_role_and_out(
    page: Page, site_url: str, settings: Settings
) -> None:
    broken: list[str] = []
    page.on("console", lambda line: broken.append(line.text) if line.type == "error" else None)
    broker = make_broker(name="Staging")
    GroupRole.objects.create(value="operators", role=Role.OPERATOR, broker=broker)
    with running_provider(site_url, {"ada": ["operators"]}) as issuer:
        configure(settings, issuer)
        page.goto("/permissions/")
        page.get_by_role("link", name="Sign in with Company").click()
        page.get_by_placeholder("Enter any login").fill("ada")
        page.get_by_placeholder("and password").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_text("Operator: role on this broker, by groups")).to_be_visible()
        sign_out(page)
        page.get_by_role("button", name="Yes, sign me out").click()
        expect(page.get_by_role("link", name="Sign in with Company")).to_be_visible()
    ours = [line for line in broken if "Content Security Policy" in line]
    assert ours == []


def test_a_passkey_and_a_code_sign_in(local: Page) -> None:
    ada = make_user("ada", Role.OPERATOR)
    sign_in(local)
    local.goto("/second-factor/")
    local.get_by_role("link", name="Add passkey").click()
    local.get_by_label("Password").fill(PASSWORD)
    local.get_by_role("button", name="Confirm").click()
    local.get_by_role("button", name="Add passkey").click()
    expect(local.get_by_text("Each replaces your second factor once.")).to_be_visible()
    local.goto("/second-factor/totp/activate/")
    key = local.locator("p code").inner_text()
    code = format_hotp_value(hotp_value(key, int(time.time()) // 30))
    local.get_by_label("code").fill(code)
    local.get_by_role("button", name="Set up app").click()
    expect(local.get_by_text("Delayboard asks for a code of your app")).to_be_visible()

    sign_out(local)
    local.get_by_role("button", name="Sign in with a passkey").click()
    expect(local.get_by_role("heading", name="Now")).to_be_visible()

    sign_out(local)
    sign_in(local)
    local.get_by_label("Code").fill("000000")
    local.get_by_role("button", name="Sign in", exact=True).click()
    expect(local.get_by_text("This code is not correct.")).to_be_visible()
    # The code before it was used, and is accepted once.
    following = format_hotp_value(hotp_value(key, int(time.time()) // 30 + 1))
    local.get_by_label("Code").fill(following)
    local.get_by_role("button", name="Sign in", exact=True).click()
    expect(local.get_by_role("heading", name="Now")).to_be_visible()

    sign_out(local)
    sign_in(local)
    local.get_by_role("button", name="Use a passkey").click()
    expect(local.get_by_role("heading", name="Now")).to_be_visible()

    sign_out(local)
    ada.set_unusable_password()
    ada.save()
    local.get_by_role("button", name="Sign in with a passkey").click()
    expect(local.get_by_text("and its passkeys with it")).to_be_visible()
