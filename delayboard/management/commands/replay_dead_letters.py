"""Replays dead letters from a shell: docs/replay.md."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from threading import Event
from typing import Any, NoReturn, Protocol, TypeAlias
from urllib.parse import quote

from django.core.management.base import CommandError, CommandParser

from delayboard.dead_letters.replay import batch_state, make_draft, options, summary
from delayboard.dead_letters.replay.verdicts import BrokerUnknown
from delayboard.dead_letters.search import QueryError
from delayboard.management import replay_output, run_in_process
from delayboard.management.confirmation import add_confirmation, confirm_at, find_user, unconfirmed
from delayboard.models import MessageGroup, ReplayBatch
from delayboard.models.replay import ENDED_BATCH, BatchState, TargetMode
from delayboard.worker.supervise import until_stopped
from topology.broker.errors import BrokerError, Unreachable
from topology.content.text import count_of, count_text
from topology.delays import DURATION_HELP
from topology.management.command import command_error
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker, find_topology
from topology.management.server import PATIENCE_SECONDS, Refused, ServedCommand, Server
from topology.models import Broker, Topology

CHOICES = ("parked_message", "group", "query")
ACTIONS = ("resume", "pause", "cancel")
# Name in `options.read_options` -> option of this command.
NAMES = {
    "mode": "to_exchange",
    "exchange": "to_exchange",
    "topology": "through",
    "topology_id": "through",
}
OPTIONS = ("key", "delay", "rate", "canary")
# Those that the API gets as numbers.
SENT = ("rate", "canary")
NOTHING = "Nothing was replayed. "
Show: TypeAlias = Callable[[ReplayBatch], Iterator[str]]
Report: TypeAlias = Callable[[Mapping[str, Any]], None]


class Command(ServedCommand):
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

    def work(self, options: Mapping[str, Any]) -> None:
        broker = find_broker(options["broker"])
        user = find_user(options["user"], broker)
        self._run(Here(user, broker), options)

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        if options["user"]:
            raise BadInput("--user is for the host. The token of --server decides who acts.")
        if options["verbosity"] > 1:
            raise BadInput("-v 2 is for the host. The page of a draft lists its messages.")
        self._run(There(server, options["broker"]), options)

    def _run(self, board: Board, given: Mapping[str, Any]) -> None:
        chosen = find_action(given)
        # What signals set from here on; nothing was begun before.
        self._stop = until_stopped()
        self._is_json = given["json"]
        self._last_line = ""
        with refusals("" if chosen in ("pause", "cancel") else NOTHING):
            if chosen in ACTIONS:
                self._act(board, chosen, given[chosen], given)
            else:
                self._check(board, board.draft(chosen, given), given)

    def _check(self, board: Board, key: int, given: Mapping[str, Any]) -> None:
        replay = self._carry(board, key)
        if replay["state"] == BatchState.PREPARING:
            self._stopped(board, key)
        if replay["state"] != BatchState.DRAFT:
            raise CommandError(f"{NOTHING}{replay['why']}")
        dry, details = board.read_dry_run(key), given["verbosity"] > 1
        if self._is_json:
            messages = board.list_messages(key, replay_output.format_messages) if details else ()
            lines = replay_output.format_dry_run(dry, messages)
        else:
            messages = board.list_messages(key, replay_output.list_messages) if details else ()
            lines = chain(replay_output.describe_dry_run(dry), messages)
        for line in lines:
            self.stdout.write(line)
        for line in dry["warnings"]:
            self.stderr.write(line, str)
        if given["dry_run"]:
            self.stderr.write(
                f"Nothing was published. Start this replay with --resume {key}, or cancel it with "
                f"--cancel {key}."
            )
            sys.exit(_code(dry["good"], replay_output.count_checked(dry)))
        self._start(board, replay, dry, given)
        self._follow(board, key)

    def _act(self, board: Board, action: str, key: int, given: Mapping[str, Any]) -> None:
        replay = board.find(key)
        if action == "resume":
            if replay["state"] == BatchState.DRAFT:
                self._start(board, replay, board.read_dry_run(key), given)
            elif replay["state"] == BatchState.PAUSED:
                board.act("resume", key)
            elif replay["state"] in ENDED_BATCH:
                raise batch_state.BatchError(f"Replay {key} has ended.")
            self._follow(board, key)
        board.act(action, key)
        self._report_counts(self._carry(board, key))

    def _start(
        self,
        board: Board,
        replay: Mapping[str, Any],
        dry: Mapping[str, Any],
        given: Mapping[str, Any],
    ) -> None:
        key, despite_verdict = replay["replay"], given["yes"]
        if (bad := replay_output.count_checked(dry) - dry["good"]) and not despite_verdict:
            raise batch_state.BatchError(
                f"Bad verdicts: {count_text(bad)} of {count_of(replay['pending'], 'message')}. "
                f"Start the replay with --resume {key} --yes, or cancel it with --cancel {key}."
            )
        confirmed = board.confirm(given, f"--resume {key}")
        approves = replay["approval_request"]
        board.start(key, despite_verdict=despite_verdict, confirm=confirmed, approves=approves)
        if board.find(key)["state"] == BatchState.DRAFT:
            raise CommandError(
                f"{NOTHING}The approval of a second person is requested. Another operator starts "
                f"the replay with --resume {key}."
            )

    def _follow(self, board: Board, key: int) -> NoReturn:
        replay = self._carry(board, key)
        self._report_counts(replay)
        has_left = self._stop.is_set() or not replay["is_resting"]
        if has_left and replay["state"] not in ENDED_BATCH:
            self._stopped(board, key)
        if replay["state"] == BatchState.PAUSED:
            self.stderr.write(f"Resume with --resume {key}, or cancel with --cancel {key}.")
        # What may have arrived is not nothing.
        is_partly = replay["unknown"] and not replay["done"]
        code = _code(replay["done"], replay_output.count_to_send(replay))
        sys.exit(ExitCode.PARTLY if is_partly else code)

    def _stopped(self, board: Board, key: int) -> NoReturn:
        self.stderr.write(
            f"The command stopped, and the worker continues. Cancel with --cancel {key}."
            if board.has_worker()
            else f"Stopped, and no worker runs. Resume with --resume {key}."
        )
        sys.exit(ExitCode.STOPPED if self._stop.is_set() else ExitCode.UNKNOWN)

    def _carry(self, board: Board, key: int) -> dict[str, Any]:
        replay = board.carry(key, self._stop, self._report)
        if self._last_line and self._is_terminal:
            self.stderr.write("")
        return replay

    def _report(self, replay: Mapping[str, Any]) -> None:
        line = replay_output.describe_progress(replay)
        if self._is_terminal:
            self.stderr.write(f"\r\x1b[K{line}", str, ending="")
            self.stderr.flush()
        elif line != self._last_line:
            self.stderr.write(line, str)
        self._last_line = line

    def _report_counts(self, replay: Mapping[str, Any]) -> None:
        lines = (
            [replay_output.format_line(replay)]
            if self._is_json
            else replay_output.describe_outcome(replay)
        )
        for line in lines:
            self.stdout.write(line)

    @property
    def _is_terminal(self) -> bool:
        return self.stderr.isatty()


class Board(Protocol):
    """The replays of a broker, here or at the server; documents are those of the API."""

    def draft(self, chosen: str, given: Mapping[str, Any]) -> int: ...
    def find(self, key: int) -> dict[str, Any]: ...
    def read_dry_run(self, key: int) -> dict[str, Any]: ...
    def list_messages(self, key: int, show: Show) -> Iterator[str]: ...
    def confirm(self, given: Mapping[str, Any], call: str) -> str: ...
    def start(self, key: int, *, despite_verdict: bool, confirm: str, approves: str) -> None: ...
    def act(self, action: str, key: int) -> None: ...
    def carry(self, key: int, stop: Event, report: Report) -> dict[str, Any]: ...
    def has_worker(self) -> bool: ...


class Here:
    def __init__(self, user: Any, broker: Broker) -> None:
        self._user, self._broker = user, broker

    def draft(self, chosen: str, given: Mapping[str, Any]) -> int:
        return create_draft_of(self._user, self._broker, chosen, given).pk

    def find(self, key: int) -> dict[str, Any]:
        return summary.make_replay_record(find_batch(self._broker, key))

    def read_dry_run(self, key: int) -> dict[str, Any]:
        return summary.make_dry_run_record(find_batch(self._broker, key))

    def list_messages(self, key: int, show: Show) -> Iterator[str]:
        return show(find_batch(self._broker, key))

    def confirm(self, given: Mapping[str, Any], call: str) -> str:
        if refusal := unconfirmed(self._broker, given, call):
            raise batch_state.BatchError(refusal)
        return ""

    def start(self, key: int, *, despite_verdict: bool, confirm: str, approves: str) -> None:
        batch = find_batch(self._broker, key)
        batch_state.start(self._user, batch, despite_verdict=despite_verdict, approves=approves)

    def act(self, action: str, key: int) -> None:
        getattr(batch_state, action)(self._user, find_batch(self._broker, key))

    def carry(self, key: int, stop: Event, report: Report) -> dict[str, Any]:
        batch = find_batch(self._broker, key)
        batch = run_in_process.carry_out(
            batch, stop, lambda one: report(summary.make_replay_record(one))
        )
        return summary.make_outcome_record(batch)

    def has_worker(self) -> bool:
        return run_in_process.has_worker()


class There:
    def __init__(self, server: Server, broker: str) -> None:
        self._server, self._broker = server, broker
        self._has_worker = True

    def draft(self, chosen: str, given: Mapping[str, Any]) -> int:
        body = {chosen: given[chosen]}
        if chosen == "parked_message":
            body = {"parked_messages": given[chosen]}
        texts = read_target(given)
        with wrong_options():
            sent = options.read_options({name: texts[name] for name in SENT if name in texts})
        body |= {
            name: getattr(sent, name) if name in SENT else text for name, text in texts.items()
        }
        try:
            path = f"brokers/{quote(self._broker, safe='')}/replays"
            return int(self._server.post(path, body)["replay"])
        except Refused as error:
            if not error.errors:
                raise
            raise explain_options(error.errors) from error

    def find(self, key: int) -> dict[str, Any]:
        found: dict[str, Any] = self._server.get(f"replays/{key}")
        if found["broker"] != self._broker:
            raise BadInput(f"{self._broker} has no replay {key}.")
        return found

    def read_dry_run(self, key: int) -> dict[str, Any]:
        found: dict[str, Any] = self._server.get(f"replays/{key}/dry-run")
        return found

    def list_messages(self, key: int, show: Show) -> Iterator[str]:
        raise NotImplementedError

    def confirm(self, given: Mapping[str, Any], call: str) -> str:
        return confirm_at(self._server, self._broker, given, NOTHING, call=call)

    def start(self, key: int, *, despite_verdict: bool, confirm: str, approves: str) -> None:
        body = {"despite_verdict": despite_verdict, "confirm": confirm, "approves": approves}
        self._server.post(f"replays/{key}/start", body)

    def act(self, action: str, key: int) -> None:
        self._server.post(f"replays/{key}/{action}")

    def carry(self, key: int, stop: Event, report: Report) -> dict[str, Any]:
        attended_at = time.monotonic()

        def is_over(replay: Mapping[str, Any]) -> bool:
            nonlocal attended_at
            self._has_worker = not replay["worker_is_missing"]
            if self._has_worker:
                attended_at = time.monotonic()
            return replay["is_resting"] or time.monotonic() - attended_at > PATIENCE_SECONDS

        found: dict[str, Any] = self._server.watch(
            f"replays/{key}", f"how replay {key} ends", is_over, stop, report
        )
        return found

    def has_worker(self) -> bool:
        return self._has_worker


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
    except Refused as error:
        raise CommandError(f"{what}{error}", returncode=error.returncode) from error


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
    with wrong_options():
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


@contextmanager
def wrong_options() -> Iterator[None]:
    try:
        yield
    except options.OptionError as error:
        raise explain_options(error.problems) from error


def explain_options(problems: Mapping[str, str]) -> BadInput:
    named = (f"{_name_flag(NAMES.get(name, name))}: {why}" for name, why in problems.items())
    return BadInput(" ".join(named))


def _read_options(broker: Broker, given: Mapping[str, Any]) -> options.Options:
    """Raises OptionError and BadInput."""
    texts = read_target(given)
    if through := texts.pop("topology", None):
        topology = find_topology(through, Topology.objects.filter(broker=broker))
        texts["topology_id"] = str(topology.pk)
    return options.read_options(texts)


def read_target(given: Mapping[str, Any]) -> dict[str, str]:
    """The options by the names of the API. Raises BadInput for more than one target or a part."""
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
        texts |= {"mode": TargetMode.DELAY.value, "topology": through}
    return texts


def _name_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def find_batch(broker: Broker, key: int) -> ReplayBatch:
    found = ReplayBatch.objects.filter(broker=broker, pk=key).first()
    if found is None:
        raise BadInput(f"{broker.name} has no replay {key}.")
    return found
