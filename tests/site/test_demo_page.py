"""The page of the demo: its tour, and who may remove it."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from delayboard.demo import removal
from delayboard.demo.script import DEMO_BROKER, TOUR
from tests.builders import make_broker, make_demo
from tests.site.page_setup import signed_in, text_of
from topology.models import Broker, Role, State, Topology

pytestmark = pytest.mark.django_db
LEAVE = "End tour"


@pytest.fixture
def broker() -> Broker:
    return make_demo()


def go_on(client: Client, step: str) -> str:
    return text_of(client.post(reverse("tour"), {"step": step}, follow=True))


def test_each_step_of_the_tour_leads_to_its_page_and_the_last_one_ends_it(broker: Broker) -> None:
    client = signed_in(Role.VIEWER)
    assert len(TOUR) == 6
    for number, step in enumerate(TOUR, 1):
        text = go_on(client, str(number))
        assert f"step {number} of 6" in text
        assert step.title in text
        assert client.session["tour"] == number
    assert f'href="{reverse("replays")}">Replays' in text_of(client.get(reverse("demo")))
    assert "tour-title" not in go_on(client, "")
    assert "tour" not in client.session


def test_a_tour_that_is_left_does_not_come_back(broker: Broker) -> None:
    client = signed_in(Role.VIEWER)
    assert LEAVE in go_on(client, "2")
    assert LEAVE in text_of(client.get(reverse("replays")))
    answer = client.post(reverse("tour"), {"next": reverse("replays")})
    assert answer.headers["Location"] == reverse("replays")
    assert LEAVE not in text_of(client.get(reverse("replays")))


@pytest.mark.parametrize("step", ["0", "7", "-1", "x", "1" * 50])
def test_a_step_that_is_none_ends_the_tour(broker: Broker, step: str) -> None:
    assert "tour-title" not in go_on(signed_in(Role.VIEWER), step)


@pytest.mark.parametrize(
    ("role", "status"), [(None, 404), (Role.VIEWER, 403), (Role.OPERATOR, 403), (Role.ADMIN, 302)]
)
def test_only_an_admin_removes_the_demo(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, role: Role | None, status: int
) -> None:
    removed = []
    monkeypatch.setattr(removal, "remove_demo", lambda user, one: removed.append(one))
    answer = signed_in(role).post(reverse("demo_remove"), {"name": DEMO_BROKER})
    assert answer.status_code == status
    assert removed == ([broker] if role == Role.ADMIN else [])


@pytest.mark.parametrize("name", ["", "demo broker", "Demo"])
def test_the_demo_stays_without_its_name(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(removal, "remove_demo")
    text = text_of(signed_in(Role.ADMIN).post(reverse("demo_remove"), {"name": name}, follow=True))
    assert "Nothing was removed." in text


def test_a_removed_demo_is_known_by_its_deleted_topologies(broker: Broker) -> None:
    assert not removal.is_removed(broker)
    assert "Remove demo" in text_of(signed_in(Role.ADMIN).get(reverse("demo")))
    Topology.objects.update(state=State.DELETED)
    assert removal.is_removed(broker)
    assert "No demo" in text_of(signed_in(Role.ADMIN).get(reverse("demo")))


def test_an_installation_without_a_demo_has_no_link_to_it() -> None:
    make_broker()
    assert reverse("demo") not in text_of(signed_in(Role.ADMIN).get(reverse("system")))
