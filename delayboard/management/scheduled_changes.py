"""`manage.py scheduled cancel`, `reschedule`, `deliver-now`, `changes` and `undo`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from http.client import CONFLICT
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from django.core.management.base import CommandError, CommandParser

from analytics.models import ScheduledMessage
from analytics.scheduled.queries.listing import Filter, match_ids
from delayboard.changes.check import bound_again_when, check, is_read
from delayboard.changes.request import describe_verdicts, find_changes, make_record, request, undo
from delayboard.management.confirmation import add_confirmation, confirm_at, find_user, unconfirmed
from delayboard.models import ChangeKind
from delayboard.models.scheduled_change import UNDOABLE
from topology.broker.errors import BrokerError
from topology.content.export_format import compact_json
from topology.database import paging
from topology.delays import MOMENT_HELP, MomentError, read_moment
from topology.management.command import command_error
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.server import Refused, Server
from topology.models import Broker

KINDS = {
    "cancel": ChangeKind.CANCEL,
    "reschedule": ChangeKind.RESCHEDULE,
    "deliver-now": ChangeKind.DELIVER_NOW,
}

ACTIONS = ("list", *KINDS, "changes", "undo")
_OF_MESSAGES = frozenset({"id", "text", "overdue", "stuck"})
_OF_CHANGES = _OF_MESSAGES | {"all", "dry_run", "user", "confirm"}
# Options that not every action accepts -> the actions that do.
OPTIONS = {
    "list": _OF_MESSAGES | {"json"},
    **dict.fromkeys(KINDS, _OF_CHANGES),
    "reschedule": _OF_CHANGES | {"to"},
    "changes": frozenset({"id", "json"}),
    "undo": frozenset({"id", "all", "dry_run", "user", "confirm"}),
}
# Most messages of one request, which is one transaction.
MOST = 1000

NOTHING = "Nothing was changed. "
SHOWS_WHY = " --dry-run shows why."

Write = Callable[[str], object]
Row = TypeVar("Row")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=ACTIONS, help="default: list")
    parser.add_argument(
        "--id",
        action="append",
        default=[],
        metavar="ID",
        help="message id, content id of a message without one, correlation id (Celery: the id of "
        "the task), or number of a message in the output of --json; for undo, the id of a change; "
        "for changes either; repeatable",
    )
    parser.add_argument("--to", metavar="TIME", help=f"new due time. {MOMENT_HELP}")
    parser.add_argument(
        "--all",
        action="store_true",
        help="change every message that matches the filter; undo every change that can be undone",
    )
    parser.add_argument("--dry-run", action="store_true", help="check all messages, change nothing")
    parser.add_argument("--user", metavar="NAME", help="act with the permissions of this user")
    add_confirmation(parser)


def refuse_unknown_options(action: str, given: Mapping[str, Any]) -> None:
    """Raises CommandError for an option that would be ignored, and for an empty id."""
    if not all(map(str.strip, given["id"])):
        raise BadInput("--id is empty: it would be the correlation id of all messages without one.")
    for name in sorted(frozenset().union(*OPTIONS.values()) - OPTIONS[action]):
        if given[name]:
            option = name.replace("_", "-")
            raise BadInput(f"The action {action} does not accept --{option}.")


def change(
    action: str,
    rows: Iterable[ScheduledMessage],
    known: Mapping[str, Collection[int]],
    given: Mapping[str, Any],
    now: datetime,
    write: Write,
) -> None:
    """Request a change of these rows, or print what it would do. Raises CommandError.

    `known` are the numbers of the rows that each given id means.
    """
    new_due_at = _read_time(action, given, now)
    chosen = _choose(rows, attrgetter("pk"), known, given)
    risky = {row.broker for row in chosen if is_read(row) or bound_again_when(row)}
    user = _permit({row.broker for row in chosen}, given, risky)
    kind = KINDS[action]
    try:
        if given["dry_run"]:
            verdicts = check(chosen, kind, now, new_due_at)
        else:
            verdicts = request(user, chosen, kind, new_due_at)
    except BrokerError as error:
        raise command_error(error, NOTHING) from error
    for line in describe_verdicts(verdicts, kind, new_due_at):
        write(line)
    _end([one.problem for one in verdicts], given, write)


def change_there(
    server: Server,
    action: str,
    lines: Iterable[Mapping[str, Any]],
    given: Mapping[str, Any],
    now: datetime,
    write: Write,
) -> None:
    """The same of messages that the API lists; all brokers are checked before the first change."""
    _read_time(action, given, now)
    some = list(islice(lines, given["limit"] or MOST + 1))
    keys = (
        (one["id"], one["message_id"] or one["content_id"], one["correlation_id"]) for one in some
    )
    chosen = _choose(some, itemgetter("id"), match_ids(keys, given["id"]), given)
    bodies: dict[str, dict[str, Any]] = {}
    for one in chosen:
        new: dict[str, Any] = {"kind": KINDS[action].value, "messages": [], "to": given["to"] or ""}
        bodies.setdefault(one["broker"], new)["messages"].append(one["id"])
    path, answers, problems = "scheduled/changes", {}, list[str]()
    try:
        for slug, body in bodies.items():
            answers[slug] = server.post(path, body, {"dry_run": "true"})
            is_risky = answers[slug]["is_risky"]
            if not given["dry_run"]:
                more = SHOWS_WHY if is_risky else ""
                body["confirm"] = confirm_at(server, slug, given, NOTHING, more, is_needed=is_risky)
        for slug, body in bodies.items():
            answer = answers[slug] if given["dry_run"] else server.post(path, body)
            for line in answer["sentences"]:
                write(line)
            problems += (verdict["problem"] for verdict in answer["verdicts"])
    except CommandError as error:
        if good := problems.count(""):
            write(f"{good} of {len(chosen)} changes requested.")
            raise _end_partly(error) from error
        nothing = NOTHING if isinstance(error, Refused) else ""
        raise CommandError(f"{nothing}{error}", returncode=error.returncode) from error
    _end(problems, given, write)


def _end_partly(error: CommandError) -> CommandError:
    """What a command ends with that this error stopped when some changes were made."""
    is_unknown = error.returncode == ExitCode.UNKNOWN
    return CommandError(str(error), returncode=error.returncode if is_unknown else ExitCode.PARTLY)


def _end(problems: Sequence[str], given: Mapping[str, Any], write: Write) -> None:
    """The last line; `problems` has "" for each change that is requested."""
    good, would = problems.count(""), "would be " if given["dry_run"] else ""
    write(f"{good} of {len(problems)} changes {would}requested.")
    if not good:
        raise CommandError("No message can be changed.")
    if good < len(problems):
        sys.exit(ExitCode.PARTLY)


def list_changes(
    given: Mapping[str, Any], found: Iterable[Mapping[str, Any]], write: Write
) -> None:
    for one in islice(found, given["limit"]):
        if given["json"]:
            write(compact_json(one))
            continue
        until = f", new due time {_moment(one['new_due_at'])}" if one["new_due_at"] else ""
        doubt = ", may be duplicated" if one["may_be_duplicated"] else ""
        due = f"due {_moment(one['due_at'])}"
        write(f"{one['id']}  {_describe(one)}, {due}{until}: {one['state']}{doubt}")


def _moment(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S}"


def _describe(one: Mapping[str, Any]) -> str:
    return f"{ChangeKind(one['change']).label} {one['message']} for {one['destination']}"


def undo_here(given: Mapping[str, Any], filters: Filter, write: Write) -> None:
    found = find_changes(filters, given["id"])
    user: Any = None

    def permit(slugs: Collection[str]) -> None:
        nonlocal user
        user = _permit(set(Broker.objects.filter(slug__in=slugs)), given)

    def undo_one(key: int) -> bool:
        return undo(user, found.get(pk=key))

    chosen = found.filter(UNDOABLE) if given["all"] else found
    _undo(given, map(make_record, chosen), permit, undo_one, write)


def undo_there(
    server: Server, values: Mapping[str, Any], given: Mapping[str, Any], write: Write
) -> None:
    """The same of changes that the API lists."""

    def permit(slugs: Collection[str]) -> None:
        for slug in slugs if not given["dry_run"] else ():
            confirm_at(server, slug, given, NOTHING)

    def undo_one(key: int) -> bool:
        try:
            server.post(f"scheduled/changes/{key}/undo")
        except Refused as error:
            if error.status != CONFLICT:
                raise
            return False
        return True

    undoable = {"undoable": "true"} if given["all"] else {}
    found = server.read_pages("scheduled/changes", {**values, **undoable})
    _undo(given, found, permit, undo_one, write)


def _undo(
    given: Mapping[str, Any],
    found: Iterable[Mapping[str, Any]],
    permit: Callable[[Collection[str]], None],
    undo_one: Callable[[int], bool],
    write: Write,
) -> None:
    """`permit` gets the brokers; `undo_one` says whether it was not too late."""
    if bool(given["id"]) is given["all"]:
        raise BadInput(
            "Select changes with --id, or use --all for every change that can be undone. "
            "`scheduled changes` lists the ids."
        )
    numbers = {text: paging.row_number(text) for text in given["id"]}
    chosen = [one for one in found if given["all"] or one["id"] in numbers.values()]
    known = {one["id"] for one in chosen}
    if unknown := [text for text, number in numbers.items() if number not in known]:
        raise BadInput(
            f"No change that matches has the id “{unknown[0]}”. `scheduled changes` lists the ids."
        )
    rows = sorted(chosen, key=itemgetter("due_at", "id"))[: given["limit"]]
    if not rows:
        raise CommandError("No change can be undone.")
    permit({one["broker"] for one in rows})
    if given["dry_run"]:
        for one in rows:
            write(f"{one['id']}  {_describe(one)}: {one['state']}.")
        number = sum(one["can_be_undone"] for one in rows)
        write(f"{number} of {len(rows)} changes would be undone.")
        return
    late = 0
    for number, one in enumerate(rows):
        try:
            is_undone = undo_one(one["id"])
        except CommandError as error:
            if good := number - late:
                write(f"{good} of {len(rows)} changes undone.")
                raise _end_partly(error) from error
            raise
        late += not is_undone
        ending = "undone." if is_undone else "already took effect, or was undone before."
        write(f"{one['id']}  {_describe(one)}: {ending}")
    undone = f"{len(rows) - late} of {len(rows)} changes undone."
    if late == len(rows):
        raise CommandError(undone)
    write(undone)
    if late:
        sys.exit(ExitCode.PARTLY)


def _read_time(action: str, given: Mapping[str, Any], now: datetime) -> datetime | None:
    if action == "reschedule" and not given["to"]:
        raise BadInput("The action reschedule needs --to.")
    try:
        return read_moment(given["to"], now) if given["to"] else None
    except MomentError as error:
        raise BadInput(f"--to: {error}") from error


def _choose(
    rows: Iterable[Row],
    number_of: Callable[[Row], int],
    known: Mapping[str, Collection[int]],
    given: Mapping[str, Any],
) -> list[Row]:
    if bool(given["id"]) is given["all"]:
        raise BadInput(
            "Select messages with --id, or use --all for every message that matches the filter."
        )
    chosen = list(islice(rows, given["limit"] or MOST + 1))
    found = set(map(number_of, chosen))
    unknown = [name for name in given["id"] if found.isdisjoint(known.get(name, ()))]
    if unknown and not given["limit"]:
        raise BadInput(f"No waiting message that matches has the id “{unknown[0]}”.")
    if not chosen:
        raise CommandError("No waiting message matches.")
    if len(chosen) > MOST:
        raise BadInput(f"More than {MOST} messages match. Narrow the filter, or use --limit.")
    return chosen


def _permit(brokers: set[Broker], given: Mapping[str, Any], risky: Collection[Broker] = ()) -> Any:
    """The account to act as, None for Delayboard itself. Raises CommandError.

    In the brokers `risky`, queues are read whole or may be bound again, which is confirmed
    everywhere.
    """
    user = None
    for broker in brokers:
        user = find_user(given["user"], broker)
        refusal = unconfirmed(broker, given, is_needed=broker in risky)
        if refusal and not given["dry_run"]:
            raise CommandError(f"{NOTHING}{refusal}{SHOWS_WHY if broker in risky else ''}")
    return user
