from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser

from tests.builders import make_broker, make_user, refuse_full_disk
from topology import audit
from topology.models import AuditEntry, Role

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


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
    assert last_entry().failure == "odd"


def test_a_stop_is_no_failure_and_details_without_a_value_are_not_shown() -> None:
    details = {"left": 0, "bad_verdicts": {}, "link": "", "every_minutes": 1}
    entry = audit.record(None, "job ended", outcome="stopped", details=details)
    assert entry.failure == ""
    assert entry.facts == [("left", 0), ("every minutes", 1)]


def test_a_line_in_the_place_of_an_entry_says_all_that_the_entry_would(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    user, broker = make_user("ann", Role.ADMIN), make_broker(name="Old")
    monkeypatch.setattr(AuditEntry, "save", refuse_full_disk)
    details = {"parked_messages": 3, "address": "192.0.2.1"}
    assert not audit.try_record(
        user, "parked messages listed", broker=broker, what="x", details=details
    )
    (line,) = caplog.records
    assert line.getMessage().startswith(
        "The audit entry “parked messages listed x” of ann at Old, "
        '{"parked_messages": 3, "address": "192.0.2.1"}, was not written: '
    )
    assert getattr(line, "is_audit", False)
