"""Replays dead letters from a shell: docs/replay.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from django.core.management.base import CommandError, CommandParser

from delayboard.dead_letters.replay import batch_state, make_draft, options
from delayboard.dead_letters.replay.verdicts import BrokerUnknown
from delayboard.dead_letters.search import QueryError
from delayboard.management import replay_output, run_in_process
from delayboard.management.confirmation import add_confirmation, find_user, unconfirmed
from delayboard.models import MessageGroup, ReplayBatch
from delayboard.models.replay import BatchState, TargetMode
from delayboard.worker.supervise import until_stopped
from topology.broker.errors import BrokerError, Unreachable
from topology.content.text import count_of, count_text
from topology.delays import DURATION_HELP
from topology.management.command import BoardCommand, command_error
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker, find_topology
from topology.models import Broker, Topology

CHOICES = ("parked_message", "group", "query")
ACTIONS = ("resume", "pause", "cancel")
# Name in `options.read_options` -> option of this command.
NAMES = {"mode": "to_exchange", "exchange": "to_exchange", "topology_id": "through"}
OPTIONS = ("key", "delay", "rate", "canary")


class Command(BoardCommand):
    help = (
        "Publish dead letters again (docs/replay.md). Exits with 0 when all are published, 3 when "
        "some are, 1 when none is, 2 when the arguments are wrong."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the slug, as in its page's address")
        add_choices(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="check all messages, publish nothing"
        )
        parser.add_argument("--yes", action="store_true", help="start despite bad verdicts")
        add_confirmation(parser)
        parser.add_argument("--user", metavar="NAME", help="run with the permissions of this user")
        parser.add_argument("--json", action="store_true", help="JSON lines on stdout")

    def handle(self, *args: Any, **given: Any) -> None:
        broker = find_broker(given["broker"])
        chosen = find_action(given)
        user = find_user(given["user"], broker)
        # What signals set from here on; nothing was begun before.
        self._stop = until_stopped()
        self._is_json = given["json"]
        self._last_line = ""
        if chosen in ACTIONS:
            batch = find_batch(broker, given[chosen])
            with refusals("Nothing was replayed. " if chosen == "resume" else ""):
                self._act(user, chosen, batch, given)
        else:
            with refusals("Nothing was replayed. "):
                batch = create_draft_of(user, broker, chosen, given)
                self._check(user, batch, given)

    def _check(self, user: Any, batch: ReplayBatch, given: Mapping[str, Any]) -> None:
        batch = self._carry(batch)
        if batch.state == BatchState.PREPARING:
            self._stopped(batch)
        if batch.state != BatchState.DRAFT:
            raise CommandError(f"Nothing was replayed. {batch.state_why}")
        is_dry, details = given["dry_run"], given["verbosity"] > 1
        if self._is_json:
            for line in replay_output.format_dry_run(batch, with_messages=details):
                self.stdout.write(line)
        else:
            for line in replay_output.describe_dry_run(batch):
                self.stdout.write(line)
            for line in replay_output.list_messages(batch) if details else ():
                self.stdout.write(line)
        for line in run_in_process.list_warnings(batch):
            self.stderr.write(line, str)
        if is_dry:
            self._end_of_dry_run(batch)
        self._start(user, batch, given)
        self._follow(batch)

    def _end_of_dry_run(self, batch: ReplayBatch) -> NoReturn:
        good, number = replay_output.count_good(batch)
        self.stderr.write(
            f"Nothing was published. Start this replay with --resume {batch.pk}, or cancel it with "
            f"--cancel {batch.pk}."
        )
        sys.exit(_code(good, number))

    def _act(self, user: Any, action: str, batch: ReplayBatch, given: Mapping[str, Any]) -> None:
        if action == "resume":
            if batch.is_draft:
                self._start(user, batch, given)
            elif batch.state == BatchState.PAUSED:
                batch_state.resume(user, batch)
            elif batch.is_ended:
                raise batch_state.BatchError(f"Replay {batch.pk} has ended.")
            self._follow(batch)
        if action == "pause":
            batch_state.pause(user, batch)
        else:
            batch_state.cancel(user, batch)
        self._report_counts(self._carry(batch))

    def _start(self, user: Any, batch: ReplayBatch, given: Mapping[str, Any]) -> None:
        despite_verdict = given["yes"]
        bad = sum(batch_state.count_bad_verdicts(batch).values())
        if bad and not despite_verdict:
            raise batch_state.BatchError(
                f"Bad verdicts: {count_text(bad)} of {count_of(batch.pending, 'message')}. "
                f"Start the replay with --resume {batch.pk} --yes, or cancel it with "
                f"--cancel {batch.pk}."
            )
        if refusal := unconfirmed(batch.broker, given, f"--resume {batch.pk}"):
            raise batch_state.BatchError(refusal)
        batch_state.start(user, batch, despite_verdict=despite_verdict)

    def _follow(self, batch: ReplayBatch) -> NoReturn:
        batch = self._carry(batch)
        self._report_counts(batch)
        if self._stop.is_set() and not batch.is_ended:
            self._stopped(batch)
        if batch.state == BatchState.PAUSED:
            self.stderr.write(
                f"Resume with --resume {batch.pk}, or cancel with --cancel {batch.pk}."
            )
        # What may have arrived is not nothing.
        is_partly = batch.unknown and not batch.done
        sys.exit(ExitCode.PARTLY if is_partly else _code(batch.done, batch.to_send))

    def _stopped(self, batch: ReplayBatch) -> NoReturn:
        self.stderr.write(_goes_on(batch))
        sys.exit(ExitCode.STOPPED)

    def _carry(self, batch: ReplayBatch) -> ReplayBatch:
        batch = run_in_process.carry_out(batch, self._stop, self._report)
        if self._last_line and self._is_terminal:
            self.stderr.write("")
        return batch

    def _report(self, batch: ReplayBatch) -> None:
        line = replay_output.describe_progress(batch)
        if self._is_terminal:
            self.stderr.write(f"\r\x1b[K{line}", str, ending="")
            self.stderr.flush()
        elif line != self._last_line:
            self.stderr.write(line, str)
        self._last_line = line

    def _report_counts(self, batch: ReplayBatch) -> None:
        lines = (
            [replay_output.format_outcome(batch)]
            if self._is_json
            else replay_output.describe_outcome(batch)
        )
        for line in lines:
            self.stdout.write(line)

    @property
    def _is_terminal(self) -> bool:
        return self.stderr.isatty()


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """What was refused becomes what the command ends with, in one sentence."""
    try:
        yield
    except QueryError as error:
        raise BadInput(f"{what}--query: {error}") from error
    except BrokerUnknown as error:
        raise command_error(Unreachable(str(error)), what) from error
    except (batch_state.BatchError, BrokerError) as error:
        raise command_error(error, what) from error


def _goes_on(batch: ReplayBatch) -> str:
    if run_in_process.has_worker():
        return f"The command stopped, and the worker continues. Cancel with --cancel {batch.pk}."
    return f"Stopped, and no worker runs. Resume with --resume {batch.pk}."


def _code(done: int, selected: int) -> int:
    if done and done == selected:
        return ExitCode.DONE
    return ExitCode.PARTLY if done else ExitCode.NO


def add_choices(parser: CommandParser) -> None:
    """The selection, the target and the options."""
    one = parser.add_argument_group("selection, or a replay (one of these)")
    one.add_argument(
        "--parked-message",
        type=int,
        action="append",
        metavar="ID",
        help="a parked message; can be repeated",
    )
    one.add_argument("--group", type=int, metavar="ID", help="the parked messages of a group")
    one.add_argument("--query", metavar="TEXT", help="all messages that match a search")
    one.add_argument("--resume", type=int, metavar="N", help="start a draft, or resume")
    one.add_argument("--pause", type=int, metavar="N", help="pause a replay")
    one.add_argument("--cancel", type=int, metavar="N", help="messages not yet begun stay parked")
    to = parser.add_argument_group(
        "target (by default the exchange and routing key of each message before it failed)"
    )
    to.add_argument("--to-exchange", metavar="X", help='with --key; "" is the default exchange')
    to.add_argument("--key", metavar="K", help="routing key of --to-exchange")
    to.add_argument("--through", metavar="TOPOLOGY", help="through its delay, with --delay")
    to.add_argument("--delay", metavar="10m", help=DURATION_HELP)
    how = parser.add_argument_group("how")
    how.add_argument("--rate", metavar="N", help="messages a second")
    how.add_argument("--canary", metavar="N", help="number of messages to publish first")


def find_action(given: Mapping[str, Any]) -> str:
    """The choice or the action that was given. Raises BadInput unless it is exactly one."""
    found = [name for name in (*CHOICES, *ACTIONS) if given[name] is not None]
    if len(found) > 1:
        *some, last = map(_name_flag, found)
        raise BadInput(f"Say only one of {', '.join(some)} and {last}.")
    if not found:
        raise BadInput(
            f"Say which ones, by one of {', '.join(map(_name_flag, (*CHOICES, *ACTIONS)))}."
        )
    if given["dry_run"] and found[0] in ACTIONS:
        raise BadInput(f"--dry-run goes with a choice, not with --{found[0]}.")
    return found[0]


def create_draft_of(
    user: Any, broker: Broker, chosen: str, given: Mapping[str, Any]
) -> ReplayBatch:
    try:
        wanted = _read_options(broker, given)
        match chosen:
            case "parked_message":
                return make_draft.draft_messages(user, broker, given["parked_message"], wanted)
            case "group":
                group = MessageGroup.objects.filter(broker=broker, pk=given["group"]).first()
                if group is None:
                    raise BadInput(f"{broker.name} has no group {given['group']}.")
                return make_draft.draft_group(user, group, wanted)
        return make_draft.draft_query(user, broker, given["query"], wanted)
    except options.OptionError as error:
        problems = [
            f"{_name_flag(NAMES.get(name, name))}: {why}" for name, why in error.problems.items()
        ]
        raise BadInput(" ".join(problems)) from error


def _read_options(broker: Broker, given: Mapping[str, Any]) -> options.Options:
    """Raises OptionError, and BadInput for more than one target or a part of one."""
    texts = {name: given[name] for name in OPTIONS if given[name] is not None}
    exchange, through = given["to_exchange"], given["through"]
    if exchange is not None and through is not None:
        raise BadInput("Say one of --to-exchange and --through.")
    if (exchange is None) != (given["key"] is None):
        raise BadInput("--to-exchange and --key go together.")
    if (through is None) != (given["delay"] is None):
        raise BadInput("--through and --delay go together.")
    if exchange is not None:
        texts |= {"mode": TargetMode.TYPED.value, "exchange": exchange}
    elif through is not None:
        topology = find_topology(through, Topology.objects.filter(broker=broker))
        texts |= {"mode": TargetMode.DELAY.value, "topology_id": str(topology.pk)}
    return options.read_options(texts)


def _name_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def find_batch(broker: Broker, key: int) -> ReplayBatch:
    found = ReplayBatch.objects.filter(broker=broker, pk=key).first()
    if found is None:
        raise BadInput(f"{broker.name} has no replay {key}.")
    return found
