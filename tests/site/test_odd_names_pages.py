"""Names nobody sees and text that no broker can hold: refused where they are typed, shown where
others made them."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils.html import escape

from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_snapshot
from tests.topology.test_names import ODD, renamed
from topology.models import Broker, Role, Topology
from topology.patterns.table import PATTERNS
from topology.provisioning.recognition import recognize

pytestmark = pytest.mark.django_db

HALF = "U+D800, which is not a valid Unicode character."
UNSEEN = "A name needs at least one visible character."


@pytest.mark.parametrize(
    ("kind", "typed", "said"),
    [
        ("retry_loop", {"name": "a", "split": "key", "timeouts": '[["\\ud800","5s"]]'}, HALF),
        ("hold_queues", {"keys": '["\\ud800"]'}, HALF),
        ("retry_pair", {"name": "  ", "delay": "5s"}, UNSEEN),
        ("retry_ladder", {"name": "  ", "delays": "5s"}, UNSEEN),
        ("delay_queues", {"queue": "  ", "delays": "5s"}, UNSEEN),
        ("busy_wait", {"queue": "  ", "delays": "5s"}, UNSEEN),
        ("hold_queues", {"exchange": "  "}, UNSEEN),
        ("retry_loop", {"name": "  "}, UNSEEN),
        ("quorum_retry", {"name": "  "}, UNSEEN),
        ("delay_levels", {"preset": "own", "prefix": "  "}, UNSEEN),
    ],
)
def test_a_form_to_add_one_says_what_is_wrong(
    broker: Broker, kind: str, typed: dict[str, str], said: str
) -> None:
    initial = {field.name: field.initial for field in PATTERNS[kind].FIELDS}
    address = f"{reverse('topology:topology_add')}?kind={kind}"
    values = {"broker": broker.slug, **initial, **typed}
    assert said in text_of(signed_in(Role.ADMIN).post(address, values))
    assert not Topology.objects.exists()


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", sorted(PATTERNS))
def test_what_others_named_oddly_is_listed_and_not_offered(
    broker: Broker, kind: str, name: str
) -> None:
    found, _ = renamed(kind, name)
    know(broker, *found)
    (one,) = recognize(a_snapshot(found)).found
    text = text_of(signed_in(Role.ADMIN).get(reverse("topology:discovered", args=[broker.slug])))
    assert escape(one.use.name) in text
    assert ("Not adoptable" in text) == (one.plan is None)
    assert (">Adopt topology</button>" in text) == (one.plan is not None)
