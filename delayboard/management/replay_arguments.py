"""The arguments of the replay command; CommandError for an invalid combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from delayboard.dead_letters.queues.search_text import make_query
from delayboard.dead_letters.replay.batch import options
from delayboard.dead_letters.replay.draft import create_draft
from delayboard.dead_letters.search.match import queue_names
from delayboard.models import MessageGroup, ReplayBatch
from delayboard.models.replay import Order, TargetMode
from topology.content.text import fold
from topology.delays import DURATION_HELP
from topology.management.exit_codes import BadInput
from topology.management.find_rows import find_topology
from topology.models import Broker, Topology

MOST_QUEUES = 10_000
CHOICES = ("parked_message", "group", "query", "parked_from")
ACTIONS = ("resume", "pause", "cancel")
# The names of `options.read_options` -> what they are called here.
NAMES = {name: name for name in options.OptionsForm.base_fields} | {
    "mode": "to_exchange",
    "exchange": "to_exchange",
    "topology_id": "through",
    "canary_seconds": "canary_wait",
    "canary_goes_on": "canary_go_on",
    "undo_seconds": "undo",
}


def add_arguments(parser: CommandParser) -> None:
    """The selection, the target and the options."""
    one = parser.add_argument_group("selection, or a replay (one of these)")
    one.add_argument(
        "--parked-message",
        "--letter",
        type=int,
        action="append",
        metavar="ID",
        help="a parked message; can be repeated",
    )
    one.add_argument("--group", type=int, metavar="ID", help="the parked messages of a group")
    one.add_argument("--query", metavar="TEXT", help="all messages that match a search")
    one.add_argument("--parked-from", metavar="QUEUE", help="all messages parked from a queue")
    one.add_argument("--resume", type=int, metavar="N", help="start a draft, or resume")
    one.add_argument("--pause", type=int, metavar="N")
    one.add_argument("--cancel", type=int, metavar="N", help="messages not yet begun stay parked")
    to = parser.add_argument_group(
        "target (by default the exchange and routing key of each message before it failed)"
    )
    to.add_argument("--to-exchange", metavar="X", help='with --key; "" is the default exchange')
    to.add_argument("--key", metavar="K")
    to.add_argument("--to-first-queue", action="store_true", help="the queue of the first failure")
    to.add_argument("--through", metavar="TOPOLOGY", help="through its delay, with --delay")
    to.add_argument("--delay", metavar="10m", help=DURATION_HELP)
    to.add_argument("--to", metavar="QUEUE", help="destination after the delay")
    how = parser.add_argument_group("how")
    how.add_argument("--limit", metavar="N", help="replay at most so many messages")
    how.add_argument("--include-repeats", action="store_true", help="include possible repeats")
    how.add_argument(
        "--keep-counters",
        action="store_true",
        help="keep the retry counters of the client library, which are reset by default",
    )
    how.add_argument(
        "--unwraps", action="store_true", help="send the message inside an envelope of EasyNetQ"
    )
    how.add_argument("--rate", metavar="N", help="messages a second")
    how.add_argument("--order", choices=Order.values)
    how.add_argument(
        "--undo", metavar="30s", help=f"undo time before the first publish. {DURATION_HELP}"
    )
    how.add_argument("--canary", metavar="N", help="publish and observe so many messages first")
    how.add_argument(
        "--canary-wait",
        metavar="60s",
        help="how long they are observed; default: one retry round of the target. After a shorter "
        f"time the replay does not resume automatically. {DURATION_HELP}",
    )
    how.add_argument(
        "--canary-go-on",
        action="store_true",
        help="resume automatically if none is dead-lettered again",
    )
    how.add_argument(
        "--most-replays", metavar="N", help="require --yes for messages replayed this many times: 3"
    )
    how.add_argument(
        "--stop-after", metavar="N", help="pause when so many are dead-lettered again: 10"
    )


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
        query = given["query"] if chosen == "query" else _make_query(broker, given["parked_from"])
        return create_draft.draft_query(user, broker, query, wanted)
    except options.OptionError as error:
        problems = [
            f"{_name_flag(NAMES.get(name, name))}: {why}" for name, why in error.problems.items()
        ]
        raise BadInput(" ".join(problems)) from error


def _make_query(broker: Broker, queue: str) -> str:
    """Raises BadInput where a search would find messages of another queue too."""
    alike = [name for name in queue_names(broker, MOST_QUEUES) if fold(name) == fold(queue)]
    if alike and alike != [queue]:
        raise BadInput(
            f"A search does not tell {', '.join(f'“{name}”' for name in alike)} apart: choose by "
            "--group, by --parked-message, or by --query with more words."
        )
    return make_query(queue)


def _read_options(broker: Broker, given: Mapping[str, Any]) -> options.Options:
    """Raises OptionError, and BadInput for what is none of its options."""
    values = {name: given[flag] for name, flag in NAMES.items() if given[flag] not in (None, False)}
    texts = {name: "yes" if value is True else value for name, value in values.items()}
    return options.read_options(texts | _read_target(broker, given))


def _read_target(broker: Broker, given: Mapping[str, Any]) -> dict[str, str]:
    """The mode, and what only it has. Raises BadInput for more than one target."""
    asked = {
        TargetMode.TYPED: given["to_exchange"] is not None,
        TargetMode.FIRST_QUEUE: given["to_first_queue"],
        TargetMode.DELAY: given["through"] is not None,
    }
    modes = [mode for mode, is_asked in asked.items() if is_asked]
    if len(modes) > 1:
        raise BadInput("Say one of --to-exchange, --to-first-queue and --through.")
    mode = modes[0] if modes else TargetMode.DEFAULT
    if mode != TargetMode.DELAY and (given["delay"] or given["to"] is not None):
        raise BadInput("--delay and --to go with --through.")
    if mode != TargetMode.TYPED and given["key"] is not None:
        raise BadInput("--key goes with --to-exchange.")
    if mode == TargetMode.TYPED and given["key"] is None:
        raise BadInput("--to-exchange goes with --key.")
    target = {"mode": mode.value}
    if mode == TargetMode.DELAY:
        rows = Topology.objects.filter(broker=broker)
        target |= {"topology_id": str(find_topology(given["through"], rows).pk)}
        target |= {"key": given["to"] or ""}
    return target


def _name_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def find_batch(broker: Broker, key: int) -> ReplayBatch:
    found = ReplayBatch.objects.filter(broker=broker, pk=key).first()
    if found is None:
        raise BadInput(f"{broker.name} has no replay {key}.")
    return found
