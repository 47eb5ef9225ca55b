"""The arguments of the replay command; CommandError for an invalid combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from delayboard.dead_letters.replay.batch import options
from delayboard.dead_letters.replay.draft import create_draft
from delayboard.models import MessageGroup, ReplayBatch
from delayboard.models.replay import TargetMode
from topology.delays import DURATION_HELP
from topology.management.exit_codes import BadInput
from topology.management.find_rows import find_topology
from topology.models import Broker, Topology

CHOICES = ("parked_message", "group", "query")
ACTIONS = ("resume", "pause", "cancel")
# The names of `options.read_options` -> what they are called here.
NAMES = {"mode": "to_exchange", "exchange": "to_exchange", "topology_id": "through"}
OPTIONS = ("key", "delay", "rate", "canary")


def add_arguments(parser: CommandParser) -> None:
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
                return create_draft.draft_messages(user, broker, given["parked_message"], wanted)
            case "group":
                group = MessageGroup.objects.filter(broker=broker, pk=given["group"]).first()
                if group is None:
                    raise BadInput(f"{broker.name} has no group {given['group']}.")
                return create_draft.draft_group(user, group, wanted)
        return create_draft.draft_query(user, broker, given["query"], wanted)
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
