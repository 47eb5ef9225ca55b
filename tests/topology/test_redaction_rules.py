from __future__ import annotations

from typing import Any

import pytest

from tests.builders import make_broker, make_user
from topology import redaction
from topology.models import RedactionKind, RedactionRule, Role
from topology.redaction import Redaction

pytestmark = pytest.mark.django_db


def test_rules_of_many_brokers_are_those_of_each(django_assert_num_queries: Any) -> None:
    brokers = [make_broker(name=f"Broker {number}") for number in range(3)]
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="token", least_role=Role.OPERATOR
    )
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="card", broker=brokers[1])
    people = {
        make_user("viewer", Role.VIEWER): (Redaction(("token",)), Redaction(("token",), ("card",))),
        make_user("operator", Role.OPERATOR): (redaction.NOTHING, Redaction((), ("card",))),
        make_user("admin", Role.ADMIN, brokers[1]): (Redaction(("token",)), redaction.NOTHING),
    }
    for user, (elsewhere, there) in people.items():
        with django_assert_num_queries(3):
            found = redaction.rules_by_broker(user, brokers)
        assert list(found.values()) == [elsewhere, there, elsewhere]
        assert found == {broker.pk: redaction.rules_for(user, broker) for broker in brokers}


@pytest.mark.parametrize("pattern", ["a\x00", "\ud800", "a" * 256])
def test_a_pattern_that_no_database_holds_is_none(pattern: str) -> None:
    with pytest.raises(redaction.PatternError):
        redaction.check_pattern(RedactionKind.HEADER, pattern)
