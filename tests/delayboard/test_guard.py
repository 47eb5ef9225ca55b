"""One check ends the open pages whose users may not watch them any more, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from delayboard.live import guard
from delayboard.live.guard import Guard, OpenPage, find_ended
from delayboard.sign_in.sessions import is_sealed
from tests.builders import make_broker, make_user, refuse_full_disk
from topology.models import Broker, Grant, Role

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


@pytest.fixture
def broker() -> Broker:
    return make_broker()


def open_page(user: User, broker: Broker, kind: str = "brokers") -> OpenPage:
    client = Client()
    client.force_login(user)
    key = client.cookies[settings.SESSION_COOKIE_NAME].value
    return OpenPage(key, user.pk, kind, str(broker.pk) if kind == "now" else broker.slug)


@pytest.mark.parametrize("kind", ["brokers", "now"])
def test_each_lost_right_ends_its_own_pages(broker: Broker, kind: str) -> None:
    names = ("stays", "closed", "password", "grant", "signed-out", "expired", "root")
    users = {name: make_user(name, Role.VIEWER, broker) for name in names}
    User.objects.filter(username="root").update(is_superuser=True)
    Grant.objects.filter(user=users["root"]).delete()
    pages = {name: open_page(user, broker, kind) for name, user in users.items()}
    other = OpenPage(pages["stays"].session_key, users["root"].pk, kind, pages["stays"].name)
    assert find_ended(pages.values()) == []
    User.objects.filter(username="closed").update(is_active=False)
    users["password"].set_password("another long password")
    users["password"].save()
    Grant.objects.filter(user=users["grant"]).delete()
    Session.objects.filter(session_key=pages["signed-out"].session_key).delete()
    Session.objects.filter(session_key=pages["expired"].session_key).update(
        expire_date=timezone.now()
    )
    ended = [pages[name] for name in ("closed", "password", "grant", "signed-out", "expired")]
    assert find_ended([*pages.values(), other]) == [*ended, other]
    broker.delete()
    assert find_ended([pages["stays"], pages["root"]]) == [pages["stays"], pages["root"]]


def test_a_session_in_a_cookie_is_checked_too(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = make_user("ann", Role.VIEWER, broker)
    monkeypatch.setattr(Session, "save", refuse_full_disk)
    page = open_page(user, broker)
    assert is_sealed(page.session_key)
    assert find_ended([page]) == []
    User.objects.update(password="another")
    assert find_ended([page]) == [page]


def test_more_pages_cost_no_more_queries(broker: Broker, django_assert_num_queries: Any) -> None:
    users = [make_user(f"user{number}", Role.VIEWER, broker) for number in range(20)]
    pages = [open_page(user, broker, kind) for user in users for kind in ("brokers", "now")]
    # Sessions, users, grants, and the broker by its slug and by its key.
    with django_assert_num_queries(5):
        assert find_ended(pages) == []


async def test_pages_are_closed_while_the_database_cannot_say(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(guard, "find_ended", refuse_full_disk)
    own = Guard()
    for _ in range(2):
        code = await own.wait_for_end(OpenPage("a", 1, "brokers", "x"))
        assert code == guard.TRY_AGAIN_LATER
    assert [record.getMessage() for record in caplog.records] == [
        "1 live pages are closed: The disk is full. Free space on the disk and try again."
    ] * 2
