"""An import of timeouts that meets a refusal, a broker that goes away, or another's change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delayboard.models import ImportedTimeout
from delayboard.publishing import destinations
from delayboard.publishing.timeout_import import import_timeouts as importing
from delayboard.publishing.timeout_import.import_tally import LineResult
from delayboard.publishing.timeout_import.import_timeouts import import_timeouts, try_import
from tests.delayboard.timeouts.lines import LONGEST, Channel, a_line, numbered, standing
from tests.topology.builders import a_queue, a_snapshot
from topology import snapshots
from topology.broker.errors import (
    BrokerError,
    Nacked,
    NotFound,
    OutcomeUnknown,
    Returned,
    Unreachable,
)
from topology.definitions import Binding, Definitions, Exchange
from topology.models import AuditEntry, State, Topology
from topology.operations.ownership import Refusal
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.snapshot import Snapshot


@pytest.mark.parametrize("error", [Returned("no queue"), NotFound("no queue")])
def test_a_line_that_the_broker_refuses_is_told_and_tried_again_by_the_next_run(
    channel: Channel, levels: Topology, error: BrokerError
) -> None:
    channel.errors["sales"] = error
    lines = numbered(a_line("sales"), a_line())
    tally = import_timeouts(levels, "file", lines, lambda verdict: None)
    assert (tally.published, tally.marks["refused"], channel.targets) == (1, 1, ["orders"])
    levels.refresh_from_db()
    assert bool(levels.owned) == isinstance(error, Returned)
    channel.errors.clear()
    tally = import_timeouts(levels, "file", lines, lambda verdict: None)
    assert (tally.published, tally.doubled, channel.targets) == (1, 0, ["orders", "sales"])


def test_a_nacked_line_may_be_published_and_is_marked_by_the_next_run(
    channel: Channel, levels: Topology
) -> None:
    channel.errors["sales"] = Nacked("full")
    lines = numbered(a_line("sales"), a_line())
    verdicts: list[LineResult] = []
    tally = import_timeouts(levels, "file", lines, verdicts.append)
    assert (tally.published, tally.marks["unknown"], tally.excluded) == (1, 1, 1)
    assert [verdict.mark for verdict in verdicts] == ["unknown", "due"]
    channel.errors.clear()
    tally = import_timeouts(levels, "file", lines, lambda verdict: None)
    assert (tally.published, tally.doubled, tally.marks["known"]) == (1, 1, 1)
    assert ImportedTimeout.objects.get(may_be_doubled=True).destination == "sales"


def test_a_line_whose_outcome_is_not_known_ends_the_run_and_may_be_doubled_by_the_next(
    channel: Channel, levels: Topology
) -> None:
    lines = numbered(a_line(), a_line("sales"), a_line(due=LONGEST / 3))
    channel.errors["sales"] = OutcomeUnknown("It broke.")
    tally = import_timeouts(levels, "file", lines, lambda verdict: None)
    assert (tally.published, tally.stopped) == (1, "Stopped at line 2: It broke.")
    entry = AuditEntry.objects.get(action="timeouts imported")
    assert entry.outcome == tally.stopped
    channel.errors.clear()
    verdicts: list[LineResult] = []
    tally = import_timeouts(levels, "file", lines, verdicts.append)
    assert [verdict.may_be_doubled for verdict in verdicts] == [False, True, False]
    assert "may be duplicated" in verdicts[1].sentence
    assert ImportedTimeout.objects.get(may_be_doubled=True).destination == "sales"
    assert channel.targets == ["orders", "sales", "orders"]


def test_a_broker_that_is_gone_leaves_no_line_half_done(channel: Channel, levels: Topology) -> None:
    channel.errors["orders"] = Unreachable("Gone.")
    tally = import_timeouts(levels, "file", numbered(a_line(), a_line()), lambda verdict: None)
    assert (tally.published, tally.stopped) == (0, "Stopped at line 1: Gone.")
    assert not ImportedTimeout.objects.exists()


@pytest.mark.usefixtures("channel")
def test_a_destination_that_another_bound_meanwhile_is_looked_at_anew(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Binding("shop.delay-delivery", "sales", "#.sales")
    views = iter([a_snapshot(standing()), a_snapshot(standing(others))])
    monkeypatch.setattr(snapshots, "for_action", lambda broker, management, objects: next(views))
    verdicts: list[LineResult] = []
    import_timeouts(levels, "file", numbered(a_line("Retail.sales")), verdicts.append)
    assert [verdict.mark for verdict in verdicts] == ["refused"]
    assert "This destination ends with" in verdicts[0].sentence
    assert channel.published == []
    assert not ImportedTimeout.objects.exists()


def test_levels_that_fall_meanwhile_end_the_run(channel: Channel, levels: Topology) -> None:
    def fall(verdict: LineResult) -> None:
        channel.seen = a_snapshot(standing().without([("queue", "shop.delay-level-03")]))

    tally = import_timeouts(levels, "file", numbered(a_line(), a_line("sales")), fall)
    assert (tally.published, tally.stopped[:39]) == (0, "Stopped at line 2: The delay levels dif")
    # A tap beside the binding may be all that took it.
    assert (tally.marks["refused"], tally.destinations["orders"]["waits"]) == (1, 0)
    assert ImportedTimeout.objects.get().published_at is None
    channel.seen = a_snapshot(standing())
    tally = import_timeouts(levels, "file", numbered(a_line(), a_line("sales")), lambda _: None)
    assert (tally.published, tally.doubled) == (2, 1)


def test_a_destination_that_loses_its_binding_after_the_confirm_is_not_taken_for_published(
    channel: Channel, levels: Topology
) -> None:
    verdicts: list[LineResult] = []

    def unbind(verdict: LineResult) -> None:
        verdicts.append(verdict)
        channel.seen = a_snapshot(standing().without([("queue", "sales")]))

    lines = numbered(a_line(), a_line("sales"))
    tally = import_timeouts(levels, "file", lines[1:], unbind)
    assert (tally.published, tally.stopped) == (0, "")
    assert "may be lost" in verdicts[-1].sentence
    assert not ImportedTimeout.objects.exclude(published_at=None).exists()


def test_a_failed_look_proves_nothing_and_the_next_look_checks_the_same_lines(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destinations, "CHECK_AGAIN_SECONDS", 0.0)
    errors: list[BrokerError] = []

    def look(*_: object) -> Snapshot:
        if errors:
            raise errors.pop()
        return channel.seen

    def unbind(verdict: LineResult) -> None:
        channel.seen = a_snapshot(standing().without([("queue", "sales")]))
        errors.append(Unreachable("Gone."))

    monkeypatch.setattr(snapshots, "for_action", look)
    lines = numbered(a_line("sales"), a_line())
    tally = import_timeouts(levels, "file", lines, unbind)
    assert (tally.published, tally.stopped) == (0, "Stopped at line 2: Gone.")
    assert ImportedTimeout.objects.get().published_at is None


def test_lines_that_the_last_look_could_not_check_are_named(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> Snapshot:
        raise Unreachable("Gone.")

    def lose(verdict: LineResult) -> None:
        monkeypatch.setattr(snapshots, "for_action", look)

    tally = import_timeouts(levels, "file", numbered(a_line()), lose)
    assert tally.stopped == (
        "Stopped at line 1: Gone. Published lines whose bindings were not checked: 1, "
        "from line 1 on. Their messages may be lost."
    )


def test_a_broker_with_an_alarm_is_given_nothing(channel: Channel, levels: Topology) -> None:
    """It would take the message when the alarm ends, and nobody would know."""
    channel.seen = replace(channel.seen, alarms=("memory on rabbit@host",))
    tally = import_timeouts(levels, "file", numbered(a_line()), lambda verdict: None)
    assert "alarm (memory on rabbit@host)" in tally.stopped
    assert not ImportedTimeout.objects.exists()


def test_a_line_that_was_long_awaited_is_published_on_a_new_connection(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "IDLE_SECONDS", 0.0)
    lines = numbered(a_line(), a_line())
    tally = import_timeouts(levels, "file", lines, lambda verdict: None)
    assert (tally.published, channel.opened) == (2, 3)


@pytest.mark.usefixtures("noon")
def test_an_interrupted_run_is_in_the_audit_log(channel: Channel, levels: Topology) -> None:
    def interrupt(verdict: LineResult) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_timeouts(levels, "file", numbered(a_line()), interrupt)
    entry = AuditEntry.objects.get(action="timeouts imported")
    assert (entry.outcome, entry.details["lines"]) == ("The import was interrupted.", {"waits": 1})
    assert len(channel.published) == 1


def test_only_applied_levels_take_an_import_and_only_one_at_a_time(
    levels: Topology, pair: Topology
) -> None:
    def bring(topology: Topology) -> None:
        import_timeouts(topology, "file", numbered(a_line()), lambda verdict: None)

    with pytest.raises(Refusal, match="not a delay levels topology"):
        bring(pair)
    with importing._alone_with(levels), pytest.raises(Refusal, match="Another import"):
        bring(levels)
    Topology.objects.filter(pk=levels.pk).update(state=State.DELETED)
    levels.refresh_from_db()
    with pytest.raises(Refusal, match=r"deleted\. Apply it first"):
        bring(levels)


def test_levels_that_do_not_stand_take_nothing(channel: Channel, levels: Topology) -> None:
    channel.seen = a_snapshot(standing().without([("queue", "shop.delay-level-03")]))
    with pytest.raises(Refusal, match=r"There is no quorum queue shop\.delay-level-03"):
        try_import(levels, "file", numbered(a_line()), lambda verdict: None)


def test_an_exchange_behind_which_nothing_is_bound_is_no_destination() -> None:
    params = delay_levels_params.Params("own", "shop", 8, destinations="exchanges")
    bare = Definitions.of([Exchange("endpoint", "fanout"), a_queue("work")])
    found = delay_levels.definitions(params) | bare
    problem = destinations.destination_problem(params, "endpoint", a_snapshot(found))
    assert problem.startswith("No queue receives the message when it is due")
    found |= Definitions.of([Binding("endpoint", "work", "")])
    assert not destinations.destination_problem(params, "endpoint", a_snapshot(found))
