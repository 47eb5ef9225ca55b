"""When findings appeared and went, and which are muted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.builders import make_broker, make_user
from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import DELAYED_TYPE, Definitions, Exchange, Queue
from topology.findings.find import find
from topology.findings.finding import Finding
from topology.findings.hit import Severity
from topology.models import AuditEntry, Broker, FindingMute, FindingPeriod, Role
from topology.operations.finding_rows import (
    count_open,
    find_mutes,
    mute_finding,
    record_findings,
    unmute_finding,
)

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def found(*queues: Queue) -> tuple[Finding, ...]:
    return find(a_snapshot(Definitions.of(queues)))


def lost(name: str = "lost", dlx: str = "not-there") -> Queue:
    return a_queue(name, dlx=dlx)


def counts(broker: Broker, now: datetime = NOON) -> dict[Severity, int]:
    return dict(count_open([broker], now).get(broker.pk, {}))


def test_a_finding_has_a_row_from_when_it_appeared_until_it_went() -> None:
    broker = make_broker()
    record_findings(broker, found(lost()), NOON)
    row = FindingPeriod.objects.get()
    assert (row.rule, row.title) == ("F01", "Dead-letter exchange missing: not-there")
    assert (row.appeared_at, row.resolved_at, row.objects_count) == (NOON, None, 1)
    record_findings(broker, found(lost(), lost("more")), NOON + HOUR)
    row.refresh_from_db()
    assert (row.appeared_at, row.resolved_at, row.objects_count) == (NOON, None, 2)
    record_findings(broker, (), NOON + 2 * HOUR)
    row.refresh_from_db()
    assert row.resolved_at == NOON + 2 * HOUR
    broker.refresh_from_db()
    assert broker.findings_checked_at == NOON + 2 * HOUR


def test_one_that_comes_back_soon_was_never_gone_and_later_it_is_another() -> None:
    broker = make_broker()
    record_findings(broker, found(lost()), NOON)
    record_findings(broker, (), NOON + HOUR)
    record_findings(broker, found(lost()), NOON + HOUR + timedelta(minutes=5))
    row = FindingPeriod.objects.get()
    assert (row.appeared_at, row.resolved_at) == (NOON, None)
    record_findings(broker, (), NOON + 2 * HOUR)
    record_findings(broker, found(lost()), NOON + 3 * HOUR)
    assert [one.resolved_at for one in FindingPeriod.objects.all()] == [None, NOON + 2 * HOUR]


def test_the_row_of_a_finding_that_grows_worse_has_its_severity() -> None:
    """The same finding: the broker was upgraded."""
    broker, objects = make_broker(), Definitions.of([Exchange("late", DELAYED_TYPE)])
    for version, severity in (("4.2.0", Severity.STYLE), ("4.3.6", Severity.REFUSED)):
        record_findings(broker, find(a_snapshot(objects, version=version)), NOON)
        assert counts(broker) == {severity: 1}


def test_findings_of_brokers_are_apart() -> None:
    broker, other = make_broker(), make_broker(name="Other")
    record_findings(broker, found(lost()), NOON)
    record_findings(other, found(lost()), NOON)
    record_findings(other, (), NOON + HOUR)
    assert counts(broker) == {Severity.LOSS: 1}
    assert counts(other) == {}


def test_names_that_no_database_takes_are_escaped() -> None:
    record_findings(make_broker(), found(lost(dlx="a\x00b\ud83d")), NOON)
    assert FindingPeriod.objects.get().title.endswith(r": a\x00b\ud83d")


def test_a_muted_finding_counts_again_after_its_end() -> None:
    broker, user = make_broker(), make_user("ann", Role.OPERATOR)
    everything = found(lost(), lost("more", dlx="other"))
    record_findings(broker, everything, NOON)
    one = everything[0]
    mute_finding(user, broker, one, reason="ticket 7", until_at=NOON + HOUR)
    mute_finding(user, broker, one, reason="ticket 8", until_at=NOON + 2 * HOUR)
    assert counts(broker) == {Severity.LOSS: 1}
    assert find_mutes(broker, NOON)[one.key].reason == "ticket 8"
    assert counts(broker, NOON + 2 * HOUR) == {Severity.LOSS: 2}
    assert find_mutes(broker, NOON + 2 * HOUR) == {}
    entry = AuditEntry.objects.filter(action="finding muted").latest("pk")
    assert (entry.username, entry.what, entry.outcome) == ("ann", one.title, "done")
    assert entry.details["reason"] == "ticket 8"


def test_unmuting_counts_it_at_once() -> None:
    broker = make_broker()
    (one,) = found(lost())
    record_findings(broker, [one], NOON)
    mute_finding(None, broker, one, reason="", until_at=NOON + HOUR)
    assert unmute_finding(None, broker, one.key)
    assert counts(broker) == {Severity.LOSS: 1}
    assert not unmute_finding(None, broker, one.key)
    assert not FindingMute.objects.exists()
