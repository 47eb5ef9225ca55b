"""Too many wrong passwords are refused for a while, by account and by address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import time_machine
from axes.models import AccessAttempt
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from delayboard.sign_in.throttle import ACCOUNT_LIMIT, ADDRESS_LIMIT, PAIR_LIMIT
from tests.builders import make_user, refuse_full_disk
from topology.audit import client_address
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db
PASSWORD = "a long enough password"
HOME, AWAY = "192.0.2.1", "198.51.100.7"
NIGHT = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)


@pytest.fixture
def ada() -> User:
    """May enter Django's own admin too, which has a sign-in page."""
    user = make_user("ada", Role.ADMIN)
    User.objects.filter(pk=user.pk).update(is_staff=True)
    return user


@pytest.fixture
def clock() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NIGHT, tick=False) as traveller:
        yield traveller


@pytest.fixture(autouse=True)
def _empty_memory() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def sign_in(password: str = PASSWORD, *, name: str = "ada", address: str = HOME) -> Any:
    fields = {"username": name, "password": password}
    return Client().post("/login/", fields, REMOTE_ADDR=address)


def fail(times: int, *, name: str = "ada", address: str = HOME) -> list[int]:
    return [sign_in("wrong", name=name, address=address).status_code for _ in range(times)]


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))


@pytest.mark.both_databases
def test_an_account_is_closed_to_an_address_that_guesses_and_says_until_when(
    ada: User, clock: time_machine.Traveller
) -> None:
    assert fail(PAIR_LIMIT) == [200] * (PAIR_LIMIT - 1) + [429]
    clock.shift(timedelta(minutes=4))
    refused = sign_in()
    assert (refused.status_code, refused["Retry-After"]) == (429, "660")
    assert "Try again in 11 minutes, at 03:15 UTC." in refused.content.decode()
    assert f"manage.py axes_reset_ip {HOME}" in refused.content.decode()
    assert sign_in(address=AWAY).status_code == 302
    clock.shift(timedelta(minutes=11, seconds=1))
    assert sign_in().status_code == 302


def test_djangos_admin_has_no_sign_in_of_its_own() -> None:
    answer = Client().post("/admin/login/", {"username": "ada", "password": PASSWORD})
    assert (answer.status_code, answer["Location"]) == (302, "/login/?next=%2Fadmin%2Flogin%2F")


def test_tries_while_an_account_is_closed_do_not_keep_it_closed(
    ada: User, clock: time_machine.Traveller
) -> None:
    fail(PAIR_LIMIT)
    for _ in range(15):
        clock.shift(timedelta(minutes=1))
        sign_in("wrong")
    clock.shift(timedelta(seconds=1))
    assert sign_in().status_code == 302


def test_an_address_that_tries_many_accounts_is_closed(ada: User) -> None:
    statuses = [fail(1, name=f"name-{n}")[0] for n in range(ADDRESS_LIMIT + 5)]
    assert statuses == [200] * (ADDRESS_LIMIT - 1) + [429] * 6
    assert sign_in().status_code == 429
    assert sign_in(address=AWAY).status_code == 302


def test_an_account_of_ones_own_does_not_open_the_address_again(ada: User) -> None:
    make_user("eve")
    for number in range(ADDRESS_LIMIT - 1):
        fail(1, name=f"name-{number}")
        assert sign_in(name="eve").status_code == 302
    assert fail(1, name="another") == [429]


def test_an_account_guessed_from_everywhere_is_closed_but_not_where_its_owner_is(
    ada: User,
) -> None:
    assert sign_in(address=HOME).status_code == 302
    statuses = [fail(1, address=f"203.0.113.{n}")[0] for n in range(ACCOUNT_LIMIT)]
    assert statuses == [200] * (ACCOUNT_LIMIT - 1) + [429]
    assert sign_in(address=AWAY).status_code == 429
    assert sign_in(address=HOME).status_code == 302


def test_a_success_forgets_the_failures_before_it(ada: User) -> None:
    fail(PAIR_LIMIT - 1)
    assert sign_in().status_code == 302
    assert fail(PAIR_LIMIT - 1) == [200] * (PAIR_LIMIT - 1)


def test_the_audit_log_has_each_thing_once_and_the_address(ada: User) -> None:
    fail(PAIR_LIMIT + 20)
    sign_in(address=AWAY)
    assert actions() == ["sign-in refused", "sign-in locked", "signed in"]
    first = AuditEntry.objects.get(action="sign-in locked")
    assert (first.what, first.details) == ("ada", {"address": HOME})
    assert AuditEntry.objects.get(action="signed in").details == {"address": AWAY}
    assert AccessAttempt.objects.count() == 1


def test_new_names_during_a_lock_add_nothing_to_the_audit_log(ada: User) -> None:
    statuses = [fail(1, name=f"name-{n}")[0] for n in range(ADDRESS_LIMIT)]
    assert statuses[-1] == 429
    before = actions()
    assert before.count("sign-in locked") == 1
    assert [fail(1, name=f"more-{n}") for n in range(5)] == [[429]] * 5
    assert actions() == before


@pytest.mark.both_databases
def test_an_admin_or_a_command_unlocks_an_account(ada: User) -> None:
    root = User.objects.create_superuser("root")
    admin = Client()
    admin.force_login(root)
    fail(PAIR_LIMIT)
    fields = {"action": "unlock", "_selected_action": [ada.pk]}
    admin.post(reverse("admin:auth_user_changelist"), fields)
    assert sign_in().status_code == 302
    fail(PAIR_LIMIT)
    call_command("axes_reset_username", "ada", stdout=None)
    assert sign_in().status_code == 302
    unlocked = AuditEntry.objects.filter(action="sign-in unlocked").order_by("pk")
    assert [(row.username, row.what) for row in unlocked] == [
        ("root", "ada"),
        ("delayboard", "ada"),
    ]


def test_an_unlock_without_its_audit_entry_unlocks_nothing(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Client(raise_request_exception=False)
    admin.force_login(User.objects.create_superuser("root"))
    fail(PAIR_LIMIT)
    monkeypatch.setattr(AuditEntry, "save", refuse_full_disk)
    fields = {"action": "unlock", "_selected_action": [ada.pk]}
    assert admin.post(reverse("admin:auth_user_changelist"), fields).status_code == 503
    assert sign_in().status_code == 429


def test_guesses_are_counted_while_the_database_takes_nothing(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("axes.models.AccessAttempt.save", refuse_full_disk)
    assert fail(PAIR_LIMIT + 1) == [200] * (PAIR_LIMIT - 1) + [429] * 2
    assert sign_in().status_code == 429
    assert sign_in(address=AWAY).status_code == 302


def test_guesses_in_memory_end_in_time_and_with_a_success(
    ada: User, monkeypatch: pytest.MonkeyPatch, clock: time_machine.Traveller
) -> None:
    monkeypatch.setattr("axes.models.AccessAttempt.save", refuse_full_disk)
    monkeypatch.setattr("axes.models.AccessLog.save", refuse_full_disk)
    fail(PAIR_LIMIT - 1)
    assert sign_in().status_code == 302
    assert fail(1) == [200]
    clock.shift(timedelta(minutes=14))
    assert fail(PAIR_LIMIT + 3)[-1] == 429
    clock.shift(timedelta(minutes=1, seconds=1))
    assert sign_in().status_code == 302


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_guesses_at_once_do_not_pass_the_limit(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    both = Barrier(2)

    def check(self: object, request: object, **fields: str) -> None:
        checked.append(fields["password"])
        # Two that are checked at once wait for each other, and no longer.
        with suppress(BrokenBarrierError):
            both.wait(timeout=0.3)

    def guess(number: int) -> int:
        try:
            return int(sign_in(f"guess {number}").status_code)
        finally:
            connection.close()

    monkeypatch.setattr(ModelBackend, "authenticate", check)
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(guess, range(8)))
    expected = {200: PAIR_LIMIT - 1, 429: 9 - PAIR_LIMIT}
    assert (Counter(statuses), len(checked)) == (expected, PAIR_LIMIT)


@pytest.mark.parametrize(
    ("stated", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("", None),
        ("unix socket", None),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(stated: str, counted: str | None, rf: Any) -> None:
    request = rf.get("/", REMOTE_ADDR=stated, HTTP_X_FORWARDED_FOR="203.0.113.9")
    assert client_address(request) == counted
