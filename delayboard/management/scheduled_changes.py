"""`manage.py scheduled cancel`, `reschedule`, `deliver-now`, `changes` and `undo`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q, QuerySet

from analytics.models import ScheduledMessage
from analytics.scheduled.queries.filter import Filter
from delayboard.changes.check import ChangeVerdict, bound_again_when, check, is_read
from delayboard.changes.request import count_other_messages, describe, make_record, request, undo
from delayboard.management.confirmation import add_confirmation, find_user, unconfirmed
from delayboard.models import ChangeKind, ScheduledChange
from delayboard.models.scheduled_change import UNDOABLE
from topology.broker.errors import BrokerError
from topology.content.export_format import compact_json
from topology.content.text import count_of
from topology.database import paging
from topology.delays import MOMENT_HELP, MomentError, read_moment
from topology.management.command import command_error
from topology.management.exit_codes import BadInput, ExitCode
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

Write = Callable[[str], object]


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
    """Raises CommandError for an option that would be ignored."""
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
    chosen = _choose(rows, known, given)
    risky = {row.broker for row in chosen if is_read(row) or bound_again_when(row)}
    users = _permit({row.broker for row in chosen}, given, risky)
    kind = KINDS[action]
    try:
        if given["dry_run"]:
            verdicts = check(chosen, kind, now, new_due_at)
        else:
            verdicts = request(users, chosen, kind, new_due_at)
    except BrokerError as error:
        raise command_error(error, "Nothing was changed. ") from error
    for verdict in verdicts:
        write(_line(verdict, action, new_due_at))
    good = [verdict for verdict in verdicts if not verdict.problem]
    for one in count_other_messages(good):
        write(
            f"Delayboard intercepts the queue “{one.queue}” from "
            f"{one.from_at:%Y-%m-%d %H:%M:%S} until a few seconds after {one.until_at:%H:%M:%S} "
            f"UTC. {one.sentence} {one.risk}".rstrip()
        )
    would = "would be " if given["dry_run"] else ""
    write(f"{len(good)} of {len(verdicts)} changes {would}requested.")
    if not good:
        raise CommandError("No message can be changed.")
    if len(good) < len(verdicts):
        sys.exit(ExitCode.PARTLY)


def list_changes(given: Mapping[str, Any], filters: Filter, write: Write) -> None:
    rows = _matching(given, filters).select_related("topology").order_by("-pk")
    if names := given["id"]:
        named = Q(key__in=names) | Q(message__correlation_id__in=names)
        rows = rows.filter(named | Q(pk__in=_numbers(names)))
    for row in islice(rows.iterator(), given["limit"]):
        if given["json"]:
            write(compact_json(make_record(row)))
            continue
        until = f", new due time {row.new_due_at:%Y-%m-%d %H:%M:%S}" if row.new_due_at else ""
        doubt = ", may be duplicated" if row.may_be_duplicated else ""
        due = f"due {row.due_at:%Y-%m-%d %H:%M:%S}"
        write(f"{row.pk}  {describe(row)}, {due}{until}: {row.status}{doubt}")


def _matching(given: Mapping[str, Any], filters: Filter) -> QuerySet[ScheduledChange]:
    wanted: dict[str, Any] = {
        "topology__slug": filters.topology,
        "destination": filters.destination,
        "due_at__gte": filters.from_at,
        "due_at__lt": filters.until_at,
    }
    rows = ScheduledChange.objects.select_related("broker")
    return rows.filter(**{name: value for name, value in wanted.items() if value})


def _numbers(names: Iterable[str]) -> set[int]:
    return {number for name in names if (number := paging.row_number(name)) is not None}


def undo_changes(given: Mapping[str, Any], filters: Filter, write: Write) -> None:
    if bool(given["id"]) is given["all"]:
        raise BadInput(
            "Select changes with --id, or use --all for every change that can be undone. "
            "`scheduled changes` lists the ids."
        )
    chosen = UNDOABLE if given["all"] else Q(pk__in=_numbers(given["id"]))
    found = _matching(given, filters).filter(chosen)
    known = set(found.values_list("pk", flat=True))
    rows = list(found[: given["limit"]])
    if unknown := [text for text in given["id"] if paging.row_number(text) not in known]:
        raise BadInput(
            f"No change that matches has the id “{unknown[0]}”. `scheduled changes` lists the ids."
        )
    if not rows:
        raise CommandError("No change can be undone.")
    user = _permit({row.broker for row in rows}, given)
    if given["dry_run"]:
        for row in rows:
            write(f"{row.pk}  {describe(row)}: {row.status}.")
        number = sum(row.can_be_undone for row in rows)
        write(f"{number} of {len(rows)} changes would be undone.")
        return
    late = []
    for row in rows:
        if undo(user, row):
            write(f"{row.pk}  {describe(row)}: undone.")
        else:
            late.append(row)
            write(f"{row.pk}  {describe(row)}: already took effect, or was undone before.")
    undone = f"{len(rows) - len(late)} of {len(rows)} changes undone."
    if len(late) == len(rows):
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
    rows: Iterable[ScheduledMessage], known: Mapping[str, Collection[int]], given: Mapping[str, Any]
) -> list[ScheduledMessage]:
    if bool(given["id"]) is given["all"]:
        raise BadInput(
            "Select messages with --id, or use --all for every message that matches the filter."
        )
    chosen = list(islice(rows, given["limit"] or MOST + 1))
    found = {row.pk for row in chosen}
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
            why = " --dry-run shows why." if broker in risky else ""
            raise CommandError(f"Nothing was changed. {refusal}{why}")
    return user


def _line(verdict: ChangeVerdict, action: str, new_due_at: datetime | None) -> str:
    row = verdict.row
    name = f"{row.key} for {row.destination}"
    if verdict.problem:
        return f"{name}: cannot be changed. {verdict.problem}"
    copy = " A copy is published at once." if verdict.is_copied else ""
    if verdict.queue:
        copy = (
            f" The worker takes {count_of(verdict.others, 'other message')} out of "
            f"“{verdict.queue}” as well, and puts them back in their places."
        )
    if new_due_at:
        copy += f" The message arrives at {new_due_at:%Y-%m-%d %H:%M:%S}."
    return f"{name}: {action} takes effect at {verdict.takes_effect_at:%Y-%m-%d %H:%M:%S}.{copy}"
