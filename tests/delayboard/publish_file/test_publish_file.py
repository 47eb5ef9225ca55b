"""What becomes of the lines of a file, tried and published, and what a second run adds."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from analytics.models import Fact, ScheduledMessage
from analytics.retention.rules import clean
from delayboard.models import PublishJob
from delayboard.publishing import destinations, publish_file, publish_job
from delayboard.publishing.publish_file import Verdict
from delayboard.retention.table import PUBLISH_JOBS
from tests.delayboard.publish_file.lines import (
    LONGEST,
    Channel,
    a_line,
    publish,
    read,
    standing,
    text,
)
from tests.topology.builders import NOON, a_queue, a_snapshot
from topology import snapshots, work
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import (
    BrokerError,
    NotFound,
    OutcomeUnknown,
    Unreachable,
)
from topology.definitions import Binding, Definitions, Exchange
from topology.message import DOUBLED_HEADER, TRACKING_HEADER
from topology.models import AuditEntry, State, Topology, Work, WorkState
from topology.operations.ownership import Refusal
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.snapshot import Snapshot

pytestmark = pytest.mark.both_databases

LINES = (
    a_line(message_id="m1"),
    a_line(due=-LONGEST),
    a_line(due=2 * LONGEST),
    b"no json",
    a_line("nobody"),
    a_line("sales"),
    a_line("Retail.sales"),
    a_line(message_id="m1"),
    a_line(headers={"n" * 300: 1}),
    a_line("o" * 250),
)
BECOME = {
    1: ("waits", "waits 2m 7s."),
    2: ("due", "due 4m 15s ago, published at once."),
    3: ("refused", "The longest delay of this topology is 4m 15s. Enter a shorter delay."),
    4: ("malformed", "The line is not JSON"),
    5: ("refused", "The queue nobody does not exist"),
    6: ("waits", "waits 2m 7s."),
    7: ("refused", "This destination ends with “sales”"),
    8: ("refused", "Line 1 has the same message id and destination."),
    9: ("refused", "more than 255 bytes"),
    10: ("refused", "has at most 239 bytes"),
}


def check(verdicts: list[Verdict], become: dict[int, tuple[str, str]]) -> None:
    found = {verdict.line: verdict for verdict in verdicts}
    assert {line: one.mark for line, one in found.items()} == {
        line: mark for line, (mark, _) in become.items()
    }
    for line, (_, sentence) in become.items():
        assert sentence in found[line].sentence


@pytest.mark.usefixtures("noon")
def test_a_dry_run_judges_each_line_and_changes_nothing(channel: Channel, levels: Topology) -> None:
    verdicts: list[Verdict] = []
    reader = read(levels, *LINES)
    publish_file.try_file(reader, verdicts.append)
    check(verdicts, BECOME)
    assert reader.destinations.unbound == {"sales"}
    assert (channel.published, channel.declared) == ([], [])
    assert not PublishJob.objects.exists()
    assert not Fact.objects.exists()
    levels.refresh_from_db()
    assert not levels.owned


@pytest.mark.usefixtures("noon")
def test_a_run_does_what_the_dry_run_said_and_a_second_one_adds_nothing(
    channel: Channel, levels: Topology
) -> None:
    verdicts: list[Verdict] = []
    tally, why = publish(levels, *LINES, report=verdicts.append)
    check(verdicts, BECOME)
    assert (why, tally.published) == ("", 3)
    assert sorted(channel.targets) == ["orders", "orders", "sales"]
    assert Fact.objects.count() == 3
    ids = {p.properties.headers[TRACKING_HEADER] for p in channel.published}
    assert len(ids) == 3
    levels.refresh_from_db()
    bound = Binding("shop.delay-delivery", "sales", "#.sales")
    assert levels.owned_identities == {bound.identity}
    job = PublishJob.objects.select_related("work").get()
    assert (job.work.state, job.published, job.returned) == (WorkState.DONE, 3, 7)
    assert (job.begun, job.unanswered, job.not_published) == (10, [], [3, 4, 5, 7, 8, 9, 10])
    entry = AuditEntry.objects.get(action="publish job ended")
    assert (entry.outcome, entry.details["published"]) == ("done", 3)
    assert "from the file file" in entry.what
    again, _ = publish(levels, *LINES)
    assert (again.published, again.marks["known"], len(channel.published)) == (0, 3, 3)
    job = PublishJob.objects.select_related("work").get()
    assert (job.published, job.returned, Work.objects.count()) == (3, 7, 1)


def test_equal_lines_without_an_id_are_as_many_messages(channel: Channel, levels: Topology) -> None:
    lines = (a_line(), a_line(), a_line())
    publish(levels, *lines)
    publish(levels, *lines)
    assert len(channel.published) == 3
    ids = [publish.properties.message_id for publish in channel.published]
    assert ids == [publish.properties.headers[TRACKING_HEADER] for publish in channel.published]
    assert len(set(ids)) == 3


def test_a_message_that_the_list_has_is_not_published_from_another_file(
    channel: Channel, levels: Topology
) -> None:
    values = {"topology": levels, "broker": levels.broker, "destination": "orders"}
    ScheduledMessage.objects.create(
        **values, key="m", message_id="m", attempt=0, requested_delay=timedelta(0)
    )
    verdicts: list[Verdict] = []
    lines = (a_line(message_id="m"), a_line("sales", message_id="m"))
    tally, _ = publish(levels, *lines, report=verdicts.append)
    assert (tally.marks["known"], channel.targets) == (1, ["sales"])
    assert "A message with this id passed the levels" in verdicts[0].sentence


@pytest.mark.parametrize(
    "values",
    [
        {"message_id": "\ud800"},
        {"reply_to": "\udc00"},
        {"headers": {"\ud800": 1}},
        {"headers": {"nested": {"a": ["\ud800"]}}},
    ],
)
def test_half_of_a_surrogate_pair_refuses_its_line_alone(
    channel: Channel, levels: Topology, values: dict[str, Any]
) -> None:
    verdicts: list[Verdict] = []
    publish(levels, a_line(**values), a_line(), report=verdicts.append)
    assert [verdict.mark for verdict in verdicts] == ["refused", "due"]
    assert "\\ud" in verdicts[0].sentence
    assert "an invalid Unicode character" in verdicts[0].sentence


@pytest.mark.parametrize("error", [Answer("returned", "no queue"), NotFound("no queue")])
def test_a_line_that_the_broker_refuses_is_told_and_tried_again_by_the_next_run(
    channel: Channel, levels: Topology, error: Answer | BrokerError
) -> None:
    channel.errors["sales"] = error
    lines = (a_line("sales"), a_line())
    tally, _ = publish(levels, *lines)
    assert (tally.published, tally.marks["refused"], channel.targets) == (1, 1, ["orders"])
    levels.refresh_from_db()
    assert bool(levels.owned) == isinstance(error, Answer)
    channel.errors.clear()
    tally, _ = publish(levels, *lines)
    assert (tally.published, tally.repeated, channel.targets) == (1, 0, ["orders", "sales"])


def test_a_nacked_line_may_be_published_and_is_marked_by_the_next_run(
    channel: Channel, levels: Topology
) -> None:
    channel.errors["sales"] = Answer("nacked", "full")
    lines = (a_line("sales"), a_line())
    tally, _ = publish(levels, *lines)
    assert (tally.published, tally.marks["unknown"]) == (1, 1)
    assert PublishJob.objects.get().unanswered == [1]
    channel.errors.clear()
    tally, _ = publish(levels, *lines)
    assert (tally.published, tally.repeated, tally.marks["known"]) == (1, 1, 1)
    assert DOUBLED_HEADER in channel.published[-1].properties.headers
    assert PublishJob.objects.get().unanswered == []


def test_lines_whose_outcome_is_not_known_end_the_run_and_are_marked_by_the_next(
    channel: Channel, levels: Topology
) -> None:
    lines = (a_line("sales"), a_line())
    channel.errors["sales"] = OutcomeUnknown("It broke.")
    tally, why = publish(levels, *lines)
    assert (tally.published, why) == (0, "Stopped at line 2. It broke.")
    channel.errors.clear()
    channel.abandon()
    verdicts: list[Verdict] = []
    tally, _ = publish(levels, *lines, report=verdicts.append)
    assert all("An earlier attempt began this line" in one.sentence for one in verdicts)
    assert (tally.published, tally.repeated) == (2, 2)
    assert len({one.properties.message_id for one in channel.published}) == 2


def test_a_broker_that_is_gone_leaves_no_line_begun(channel: Channel, levels: Topology) -> None:
    channel.errors["orders"] = Unreachable("Gone.")
    tally, why = publish(levels, a_line(), a_line())
    assert (tally.published, why) == (0, "Stopped at line 1. Gone.")
    job = PublishJob.objects.get()
    assert (job.unanswered, job.not_published) == ([], [1])
    channel.errors.clear()
    tally, _ = publish(levels, a_line(), a_line())
    assert (tally.published, tally.repeated) == (2, 0)


def test_a_destination_that_another_bound_meanwhile_is_looked_at_anew(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = a_snapshot(standing(Binding("shop.delay-delivery", "sales", "#.sales")))
    views = iter([a_snapshot(standing()), others, others])
    monkeypatch.setattr(snapshots, "for_action", lambda broker, management, objects: next(views))
    verdicts: list[Verdict] = []
    publish(levels, a_line("Retail.sales"), report=verdicts.append)
    assert [verdict.mark for verdict in verdicts] == ["refused"]
    assert "This destination ends with" in verdicts[0].sentence
    assert channel.published == []
    assert PublishJob.objects.get().unanswered == []


def test_a_destination_that_loses_its_queue_after_the_confirm_is_not_taken_for_published(
    channel: Channel, levels: Topology
) -> None:
    verdicts: list[Verdict] = []

    def unbind(verdict: Verdict) -> None:
        verdicts.append(verdict)
        channel.seen = a_snapshot(standing().without([("queue", "sales")]))

    tally, why = publish(levels, a_line("sales"), report=unbind)
    assert (tally.published, tally.marks["lost"], why) == (0, 1, "")
    assert "may be lost" in verdicts[-1].sentence
    assert PublishJob.objects.get().unanswered == [1]


def test_levels_that_fall_meanwhile_end_the_run(channel: Channel, levels: Topology) -> None:
    def fall(verdict: Verdict) -> None:
        channel.seen = a_snapshot(standing().without([("queue", "shop.delay-level-03")]))

    tally, why = publish(levels, a_line(), report=fall)
    assert (tally.published, why[:39]) == (0, "Stopped at line 1. The delay levels dif")
    # A tap beside the binding may be all that took it.
    assert tally.marks["lost"] == 1
    channel.seen = a_snapshot(standing())
    tally, _ = publish(levels, a_line())
    assert (tally.published, tally.repeated) == (1, 1)


def test_lines_that_the_last_look_could_not_check_are_published_again_marked(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> Snapshot:
        raise Unreachable("Gone.")

    def lose(verdict: Verdict) -> None:
        patched.setattr(snapshots, "for_action", look)

    with monkeypatch.context() as patched:
        tally, why = publish(levels, a_line(), report=lose)
    assert (tally.published, tally.marks["lost"]) == (0, 1)
    assert why == "Stopped at line 1. Gone."
    tally, _ = publish(levels, a_line())
    assert (tally.published, tally.repeated) == (1, 1)


def test_a_broker_with_an_alarm_is_given_nothing(channel: Channel, levels: Topology) -> None:
    """It would take the message when the alarm ends, and nobody would know."""
    channel.seen = replace(channel.seen, alarms=("memory on rabbit@host",))
    _, why = publish(levels, a_line())
    assert "alarm (memory on rabbit@host)" in why
    assert (channel.published, PublishJob.objects.get().unanswered) == ([], [])


def test_a_file_of_mistakes_is_not_read_to_its_end(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_file, "MOST_REFUSED", 2)
    _, why = publish(levels, *[b"no json"] * 5, a_line())
    assert "More than 2 lines were not published. Check the file." in why
    assert channel.published == []


def test_a_stop_on_the_page_ends_the_run_and_the_same_file_goes_on(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_job, "PULSE_SECONDS", 0.0)

    def stop(verdict: Verdict) -> None:
        publish_job.stop_job(None, PublishJob.objects.select_related("work").get())

    tally, why = publish(levels, a_line(), report=stop)
    assert (tally.published, why) == (1, "Stopped at line 1.")
    job = PublishJob.objects.select_related("work").get()
    assert (job.work.state, job.unanswered) == (WorkState.CANCELLED, [])
    tally, why = publish(levels, a_line())
    assert (tally.marks["known"], why) == (1, "")
    assert PublishJob.objects.select_related("work").get().work.state == WorkState.DONE


def test_what_another_process_published_since_the_file_was_read_is_known(
    channel: Channel, levels: Topology
) -> None:
    early, verdicts = read(levels, a_line()), list[Verdict]()
    publish(levels, a_line())
    publish_file.publish_file(
        None, early, "file", verdicts.append, rate=5000, stop=threading.Event()
    )
    assert ([one.mark for one in verdicts], len(channel.published)) == (["known"], 1)


def test_only_applied_levels_take_a_file_and_one_process_publishes_it(
    channel: Channel, levels: Topology, pair: Topology
) -> None:
    with pytest.raises(Refusal, match="not a delay levels topology"):
        read(pair, a_line())
    publish(levels, a_line())
    own = work.create(publish_file.KIND, 0, broker=levels.broker, user=None)
    assert work.claim_this(own, "another")
    PublishJob.objects.update(work=own)
    with pytest.raises(Refusal, match="Another process publishes this file"):
        publish(levels, a_line())
    Topology.objects.filter(pk=levels.pk).update(state=State.DELETED)
    levels.refresh_from_db()
    with pytest.raises(Refusal, match=r"deleted\. Choose another topology"):
        read(levels, a_line())


def test_of_two_processes_that_begin_a_file_at_once_one_is_refused(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(levels, a_line())
    # What the other stored is not seen yet.
    monkeypatch.setattr(publish_file.FileReader, "jobs", PublishJob.objects.none())
    with pytest.raises(Refusal, match="Another process began"):
        publish(levels, a_line())
    assert (PublishJob.objects.count(), len(channel.published)) == (1, 1)


def test_levels_that_do_not_stand_take_nothing(channel: Channel, levels: Topology) -> None:
    channel.seen = a_snapshot(standing().without([("queue", "shop.delay-level-03")]))
    with pytest.raises(Refusal, match=r"There is no quorum queue shop\.delay-level-03"):
        read(levels, a_line())


def test_an_exchange_behind_which_nothing_is_bound_is_no_destination() -> None:
    params = delay_levels_params.Params("own", "shop", 8, destinations="exchanges")
    bare = Definitions.of([Exchange("endpoint", "fanout"), a_queue("work")])
    found = delay_levels.definitions(params) | bare
    problem = destinations.destination_problem(params, "endpoint", a_snapshot(found))
    assert problem.startswith("No queue receives the message when it is due")
    found |= Definitions.of([Binding("endpoint", "work", "")])
    assert not destinations.destination_problem(params, "endpoint", a_snapshot(found))


def test_a_job_is_forgotten_a_year_after_its_end(channel: Channel, levels: Topology) -> None:
    publish(levels, a_line())
    Work.objects.update(ended_at=NOON)
    for days, number in ((364, 0), (366, 1)):
        deleted = clean([PUBLISH_JOBS], NOON + timedelta(days=days))
        assert deleted == {PUBLISH_JOBS.what: number}


def test_the_command_tells_with_numbers_and_its_exit_code(
    channel: Channel, levels: Topology, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "timeouts.jsonl"
    soon = (datetime.now(UTC) + LONGEST / 2).isoformat()
    row = {"Destination": "sales", "Time": soon, "State": "", "Headers": {}}
    good = text(row)
    file.write_bytes(good)
    options = ("--topology", levels.slug, "--mapping", "nservicebus", "--file", str(file))
    call_command("publish", *options, "--dry-run")
    reported = capsys.readouterr().out
    assert "line 1 for “sales”: waits 2m" in reported
    assert "sales: 1 waits, bound by this\n1 lines: 1 waits\n" in reported
    call_command("publish", *options, "--dry-run", "--json")
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["state"] for one in said] == ["waits", "destination", "total"]
    file.write_bytes(b"no json\n" + good)
    with pytest.raises(SystemExit) as ended:
        call_command("publish", *options, "--rate", "1000")
    assert ended.value.code == 3
    told = capsys.readouterr().out
    assert "line 1: malformed: The line is not JSON" in told
    assert "2 lines: 1 malformed, 1 waits" in told
    with pytest.raises(SystemExit):
        call_command("publish", *options)
    told = capsys.readouterr().out
    assert "2 lines: 1 published before, 1 malformed" in told
    assert "Publish the same file again" in told
    channel.errors["sales"] = Unreachable("Gone.")
    file.write_bytes(good + b" ")
    for arguments, why, code in (
        (options, "Stopped at line 1. Gone", 1),
        (("--topology", "nothing", "--file", str(file)), f"Existing topologies: {levels.slug}", 2),
        (("--file", str(file)), "Use --topology", 2),
        ((*options[:-1], str(tmp_path / "none")), "cannot be read", 2),
        ((*options, "--mapping", "none"), "“none” is no mapping", 2),
        ((*options, "--rate", "0.0"), "more than 0", 2),
        ((*options, "--delay", "5s"), "Use --delay without --file", 2),
    ):
        with pytest.raises(CommandError, match=why) as refused:
            call_command("publish", *arguments)
        assert refused.value.returncode == code
