from __future__ import annotations

import re

import pytest
from django.urls import reverse
from django.utils import timezone

from tests.builders import make_broker, make_pair
from tests.site.page_setup import signed_in, text_of
from topology.models import Role


@pytest.mark.parametrize(
    ("sort", "names"),
    [("", "a b"), ("-name", "b a"), ("broker", "b a"), ("-applied", "a b"), ("x", "a b")],
)
def test_topologies_are_sorted_by_a_column(db: None, sort: str, names: str) -> None:
    first = make_pair(make_broker(name="Two"), name="a")
    make_pair(make_broker(name="One"), name="b")
    first.applied_at = timezone.now()
    first.save()
    query = {"sort": sort}
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:topologies"), query))
    assert re.findall(r'class="name" href="/topologies/(\w)/"', text) == names.split()
