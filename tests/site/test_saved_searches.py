"""The saved searches of Scheduled and Findings; those of parked messages are in their own tests."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from delayboard.models import RedactionKind, SavedSearch
from tests.builders import make_broker, make_pair
from tests.site.page_setup import know, signed_in
from topology.definitions import Arguments, Queue
from topology.models import Broker, RedactionRule, Role

NOWHERE = Queue("lost", arguments=Arguments({"x-dead-letter-exchange": "nowhere"}))


@pytest.fixture
def broker(db: None) -> Broker:
    broker = make_broker()
    know(broker, NOWHERE)
    make_pair(broker)
    return broker


@pytest.mark.parametrize(
    ("listed", "address", "asked", "query"),
    [
        (
            "scheduled",
            "/scheduled/?broker=test-broker",
            "&destination=a+b&text=&after=x",
            "destination=a+b",
        ),
        ("findings", "/findings/test-broker/", "?q=lost&severity=&from=0", "q=lost"),
    ],
)
def test_a_list_saves_its_filter_and_leads_back_to_it(
    broker: Broker, listed: str, address: str, asked: str, query: str
) -> None:
    operator = signed_in(Role.OPERATOR)
    text = operator.get(address + asked).content.decode()
    assert re.findall(r'name="q" value="([^"]*)"><div', text) == [query]
    values = {"list": listed, "name": "mine", "q": query}
    answer = operator.post(reverse("saved_searches", args=["test-broker"]), values)
    row = SavedSearch.objects.get()
    assert (row.searched, row.query) == (listed, query)
    saved = f"{address}{'&' if '?' in address else '?'}{query}"
    assert answer["Location"] == saved
    text = signed_in(Role.VIEWER).get(address).content.decode()
    assert f'href="{saved.replace("&", "&amp;")}"' in text
    assert "Delete search" not in text
    assert (
        "mine"
        not in signed_in(Role.VIEWER).get("/dead-letters/test-broker/parked/").content.decode()
    )


def test_a_saved_text_is_hidden_where_a_rule_hides_content(broker: Broker) -> None:
    for name, query in (("told", "text=secret"), ("plain", "destination=x")):
        SavedSearch.objects.create(broker=broker, searched="scheduled", name=name, query=query)
    RedactionRule.objects.create(
        broker=broker, kind=RedactionKind.HEADER, pattern="x-key", least_role=Role.ADMIN
    )
    text = signed_in(Role.OPERATOR).get("/scheduled/").content.decode()
    assert ("secret" in text, "plain" in text) == (False, True)
    assert "secret" in signed_in(Role.ADMIN).get("/scheduled/").content.decode()


def test_a_list_that_there_is_not_is_not_found(broker: Broker) -> None:
    address = reverse("saved_searches", args=["test-broker"])
    assert signed_in(Role.OPERATOR).post(address, {"list": "x"}).status_code == 404
