"""Places in a list that no page has handed out, and texts that no database can look for."""

from __future__ import annotations

import pytest
from django.urls import reverse

from tests.site.page_setup import draft, signed_in, text_of
from topology.database.paging import row_number
from topology.models import Broker, Role

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("text", ["", "²", "9" * 40, "-1", "1.5", "x"])
def test_what_is_no_row_is_the_first_page(broker: Broker, text: str) -> None:
    draft(broker)
    client = signed_in(Role.ADMIN)
    assert row_number(text) is None
    for name, place, row in (
        ("topology:audit", "after", "replay"),
        ("replays", "after", "2 chosen parked messages"),
    ):
        assert row in text_of(client.get(reverse(name), {place: text}))


@pytest.mark.parametrize("name", ["topology:audit", "replays"])
def test_the_largest_row_is_still_compared_with(broker: Broker, name: str) -> None:
    draft(broker)
    text = text_of(signed_in(Role.ADMIN).get(reverse(name), {"after": "9" * 18}))
    assert "First page</a>" in text


@pytest.mark.parametrize("after", ["", "0", "²", "9" * 40, "-1", "2026-01-01T00:00:00+00:00,1"])
def test_a_message_that_is_none_is_the_first_page(broker: Broker, after: str) -> None:
    answer = signed_in(Role.VIEWER).get(reverse("analytics:scheduled"), {"after": after})
    assert answer.status_code == 200
    assert "First page" not in answer.content.decode() or after == "0"


@pytest.mark.parametrize("query", ["q=a%00b", "q=a\0b", "%00=a"])
def test_a_nul_in_the_address_is_answered_with_a_sentence(query: str) -> None:
    answer = signed_in(Role.ADMIN).get(reverse("topology:audit"), QUERY_STRING=query)
    assert answer.status_code == 400
    assert answer.content.decode().startswith("The address contains a NUL character")
    assert answer["Content-Security-Policy"]


def test_a_percent_sign_before_zeros_is_no_nul() -> None:
    answer = signed_in(Role.ADMIN).get(reverse("topology:audit"), QUERY_STRING="q=%2500")
    assert answer.status_code == 200
