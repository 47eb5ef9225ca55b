"""Sessions end after a time without use, and after a time altogether; TLS has its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import time_machine
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from pytest_django import Settings

from delayboard.sign_in.sessions import SEALED_SECONDS, SessionStore, is_sealed
from tests.builders import make_user, refuse_full_disk
from topology.models import Role

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
IDLE, MOST = timedelta(minutes=30), timedelta(hours=2)


@pytest.fixture
def clock(settings: Settings) -> Iterator[time_machine.Traveller]:
    settings.SESSION_COOKIE_AGE = int(IDLE.total_seconds())
    settings.SESSION_MAX_HOURS = MOST.total_seconds() / 3600
    with time_machine.travel(NOON, tick=False) as traveller:
        yield traveller


@pytest.fixture
def ada() -> User:
    return make_user("ada", Role.ADMIN)


@pytest.fixture
def client(ada: User, clock: time_machine.Traveller) -> Client:
    client = Client()
    client.force_login(ada)
    return client


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "save", refuse_full_disk)


def is_signed_in(client: Client, **headers: str) -> bool:
    return client.get("/brokers/", headers=headers).status_code == 200


def test_a_session_ends_when_it_is_not_used(client: Client, clock: time_machine.Traveller) -> None:
    for _ in range(3):
        clock.shift(IDLE - timedelta(seconds=1))
        assert is_signed_in(client)
    clock.shift(IDLE + timedelta(seconds=1))
    assert not is_signed_in(client)


def test_a_session_ends_though_it_is_used(client: Client, clock: time_machine.Traveller) -> None:
    for _ in range(7):
        clock.shift(MOST / 8)
        assert is_signed_in(client)
    clock.shift(MOST / 8 + timedelta(seconds=1))
    assert not is_signed_in(client)


def test_a_page_that_fetches_itself_keeps_no_session(
    client: Client, clock: time_machine.Traveller
) -> None:
    for _ in range(4):
        clock.shift(IDLE / 4 - timedelta(seconds=1))
        assert is_signed_in(client, X_Refresh="1")
    clock.shift(timedelta(seconds=5))
    assert not is_signed_in(client, X_Refresh="1")


def test_the_pages_that_fetch_themselves_say_so() -> None:
    scripts = {path.name: path.read_text() for path in Path("delayboard/static").rglob("*.js")}
    fetching = {name for name, text in scripts.items() if "fetch(" in text}
    # What these fetch a person has typed.
    typed = {"keys.js", "publish.js"}
    assert fetching == {"live.js", "reading.js", *typed}
    assert {name for name in fetching if '"X-Refresh"' in scripts[name]} == fetching - typed


def test_a_use_is_written_once_a_minute(client: Client, clock: time_machine.Traveller) -> None:
    before = Session.objects.get().expire_date
    clock.shift(timedelta(seconds=59))
    assert is_signed_in(client)
    assert Session.objects.get().expire_date == before
    clock.shift(timedelta(seconds=1))
    assert is_signed_in(client)
    assert Session.objects.get().expire_date == before + timedelta(seconds=60)


@pytest.mark.both_databases
@pytest.mark.usefixtures("full_disk")
def test_a_session_lives_in_its_cookie_while_the_disk_is_full(
    ada: User, clock: time_machine.Traveller
) -> None:
    client = Client()
    client.force_login(ada)
    key = client.cookies["sessionid"].value
    assert is_sealed(key)
    assert is_signed_in(client)
    assert not Session.objects.exists()
    clock.shift(IDLE + timedelta(seconds=1))
    assert not is_signed_in(client)


@pytest.mark.usefixtures("full_disk")
def test_a_session_in_a_cookie_ends_with_the_password(
    ada: User, clock: time_machine.Traveller
) -> None:
    thief = Client()
    thief.force_login(ada)
    stolen = thief.cookies["sessionid"].value
    assert is_signed_in(thief)
    ada.set_password("another long passphrase")
    ada.save()
    assert not is_signed_in(thief)
    thief.cookies["sessionid"] = stolen[:-1]
    assert not is_signed_in(thief)


def test_a_row_stays_as_it_is_while_the_disk_is_full(
    client: Client, clock: time_machine.Traveller
) -> None:
    row = client.cookies["sessionid"].value
    clock.shift(timedelta(minutes=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "save", refuse_full_disk)
        assert is_signed_in(client)
    assert client.cookies["sessionid"].value == row == Session.objects.get().session_key
    client.post("/logout/")
    client.cookies["sessionid"] = row
    assert not is_signed_in(client)


def test_a_session_that_began_in_a_cookie_ends_after_its_hour(
    ada: User, clock: time_machine.Traveller
) -> None:
    client = Client()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "save", refuse_full_disk)
        client.force_login(ada)
    for _ in range(4):
        clock.shift(SEALED_SECONDS / 4 - 1)
        assert is_signed_in(client)
    clock.shift(5)
    assert not is_signed_in(client)


@pytest.mark.usefixtures("full_disk")
def test_a_cookie_has_a_short_time_whatever_the_settings(settings: Settings) -> None:
    settings.SESSION_COOKIE_AGE = 30 * 24 * 3600
    with time_machine.travel(NOON, tick=False) as clock:
        store = SessionStore()
        store["name"] = "value"
        store.save()
        assert SessionStore(store.session_key)["name"] == "value"
        clock.shift(SEALED_SECONDS + 1)
        assert "name" not in SessionStore(store.session_key)


def run_with_tls(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "BEHIND_TLS": "1", "DELAYBOARD_VAR": str(folder)}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_djangos_checks_for_production_have_nothing_to_say_with_tls(tmp_path: Path) -> None:
    done = run_with_tls("check", "--deploy", "--fail-level", "WARNING", folder=tmp_path)
    assert done.returncode == 0, done.stderr


REQUEST = """
from django.test import Client
plain = Client().get("/login/", HTTP_HOST="localhost")
print(plain.status_code, plain["Location"])
safe = Client().get("/login/", HTTP_HOST="localhost", HTTP_X_FORWARDED_PROTO="https")
print(safe.status_code, safe["Strict-Transport-Security"], safe.cookies["csrftoken"]["secure"])
"""


def test_http_is_redirected_and_the_browser_keeps_to_https(tmp_path: Path) -> None:
    done = run_with_tls("shell", "--no-imports", "-c", REQUEST, folder=tmp_path)
    assert done.stdout.splitlines() == [
        "301 https://localhost/login/",
        "200 max-age=31536000; includeSubDomains True",
    ], done.stderr
