from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser

from tests.builders import make_broker, make_user
from topology import audit
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db


def last_entry() -> AuditEntry:
    entry = AuditEntry.objects.first()
    assert entry is not None
    return entry


def test_long_texts_are_cut_and_an_anonymous_user_is_delayboard() -> None:
    entry = audit.record(AnonymousUser(), "looked", what="w" * 900, outcome="o" * 900)
    entry.refresh_from_db()
    assert (len(entry.what), len(entry.outcome)) == (500, 500)
    assert (entry.user, entry.username, entry.broker_name) == (None, "delayboard", "")


def test_an_entry_outlives_what_it_names() -> None:
    user = make_user("ann", Role.ADMIN)
    broker = make_broker(name="Old")
    audit.record(user, "looked", broker=broker)
    user.delete()
    broker.delete()
    entry = last_entry()
    assert (entry.username, entry.broker_name, entry.user, entry.broker) == (
        "ann",
        "Old",
        None,
        None,
    )


def test_an_error_is_recorded_and_goes_on() -> None:
    with pytest.raises(ValueError, match="odd"), audit.recorded(None, "tried", what="it"):
        raise ValueError("odd")
    assert (last_entry().action, last_entry().outcome) == ("tried", "failed: odd")
