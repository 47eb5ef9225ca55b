"""Who may read which entries of the audit log."""

from __future__ import annotations

import pytest
from django.urls import reverse

from tests.builders import make_broker
from tests.site.page_setup import signed_in, text_of
from topology import audit
from topology.models import Broker, Role
from topology.views import audit as page

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _entries(broker: Broker) -> None:
    audit.record(None, "looked", broker=broker, what="of-mine")
    audit.record(None, "looked", broker=make_broker(name="Other"), what="of-another")
    audit.record(None, "looked", what="of-none")


@pytest.mark.parametrize(
    ("everywhere", "seen"),
    [(True, {"of-mine", "of-another", "of-none"}), (False, {"of-mine"})],
)
def test_an_admin_reads_what_was_done_to_the_brokers_he_is_admin_of(
    broker: Broker, everywhere: bool, seen: set[str]
) -> None:
    client = signed_in(Role.ADMIN, None if everywhere else broker)
    for query in ({}, {"q": "looked"}):
        text = text_of(client.get(reverse("topology:audit"), query))
        assert {what for what in ("of-mine", "of-another", "of-none") if what in text} == seen
    assert f'href="{reverse("topology:audit")}"' in text_of(client.get(reverse("now")))


def test_now_lists_changes_and_no_views(broker: Broker) -> None:
    for action in ("parked messages listed", "queue peeked", "topology applied"):
        audit.record(None, action, broker=broker)
    shown = signed_in(Role.ADMIN).get(reverse("now")).context["actions"]
    assert {entry.action for entry in shown} - {"looked"} == {"topology applied"}


def test_a_page_begins_after_the_last_entry_of_the_one_before(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PAGE", 2)
    client, pages, query = signed_in(Role.ADMIN), [], {"q": "looked"}
    for _ in range(2):
        answer = client.get(reverse("topology:audit"), query)
        pages.append([entry.what for entry in answer.context["page"].rows])
        assert (">First page</a>" in text_of(answer)) == ("after" in query)
        query = {"q": "looked", "after": str(answer.context["page"].edge)}
    assert pages == [["of-none", "of-another"], ["of-mine"]]
    assert answer.context["page"].edge is None


@pytest.mark.parametrize("role", [None, Role.VIEWER, Role.OPERATOR])
def test_nobody_else_reads_it_or_is_led_there(role: Role | None) -> None:
    client = signed_in(role)
    assert client.get(reverse("topology:audit")).status_code == 403
    assert f'href="{reverse("topology:audit")}"' not in text_of(client.get(reverse("now")))
