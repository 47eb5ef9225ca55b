"""Apply the remedy of a finding: creates what is missing, sets policies, and declares again what
has other arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from topology import audit, snapshots
from topology.broker.address import Address
from topology.broker.amqp.depths import live_depths
from topology.broker.errors import BrokerError, NotFound, Unreachable
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.broker.management.observe import (
    declared_exchange,
    declared_queue,
    newest_numbers,
    read_binding,
)
from topology.broker.management.policies import put_in_force
from topology.content.text import count_of
from topology.definitions import (
    PREDECLARED_PREFIX,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Queue,
)
from topology.exports.resources import raw_definitions
from topology.findings.context import Context
from topology.findings.hit import Policy
from topology.findings.remedy import Remedy, describe_policies
from topology.models import Broker, Topology
from topology.operations.ownership import (
    Refusal,
    changing,
    owning,
    refuse_deleted,
    refuse_replacing,
)
from topology.operations.topology_rows import User
from topology.provisioning.plan import Change, Plan, compare, conflict_sentences, make_plan, title
from topology.routing.matching.match import FORESEEABLE
from topology.routing.walk import stores_stuck_messages
from topology.snapshot import QueueNumbers, Snapshot
from topology.transfer.interception import explain_open


def apply_remedy(
    user: User, broker: Broker, title: str, remedy: Remedy, owner: Topology | None
) -> Plan:
    """The objects are those of `owner`, where the finding is about a topology of Delayboard.

    Raises Refusal on a conflict, and where a queue to be replaced holds messages or has consumers;
    BrokerError when the broker fails: what was created before stays, and another call creates the
    rest.
    """
    details: dict[str, Any] = {
        "policies": list(describe_policies(remedy)),
        "replaced": [],
    }
    with _session(user, broker, title, owner, details) as management:
        concerned = [*remedy.objects, *remedy.replaced]
        snapshot = snapshots.for_action(broker, management, concerned)
        plan = make_plan(remedy.objects, snapshot)
        if not plan.is_applicable:
            raise Refusal(f"{' '.join(conflict_sentences(plan))} Delayboard changed nothing.")
        policies = list(_complete(management, remedy.policies))
        queues = [one.name for one in remedy.replaced if isinstance(one, Queue)]
        queues += [each.name for one in remedy.replaced for each in _list_feeding(one, snapshot)]
        depths = live_depths(broker.address, queues) if queues else {}
        if problems := explain_in_use(remedy, snapshot, depths):
            raise Refusal(f"{' '.join(problems)} Delayboard changed nothing.")
        created = [change.object for change in plan.select("create")]
        details["created"] = [change.title for change in plan.select("create")]
        if owner is None:
            management.declare(created)
        else:
            with owning(owner, remedy.objects, snapshot.definitions) as declared:
                management.declare(created)
                declared()
        for set_policy in policies:
            set_policy()
        # What is deleted is declared again, also where somebody else takes over meanwhile.
        extend, management.before_change = management.before_change, lambda: None
        for one in remedy.replaced:
            try:
                extend()
                _replace(user, broker, one, management)
            except (Refusal, BrokerError) as error:
                done = [*details["created"], *details["policies"], *details["replaced"]]
                before = f" Done before: {', '.join(done)}." if done else ""
                raise type(error)(f"{error}{before}") from error
            details["replaced"].append(" ".join(one.identity))
    return plan


def plan_replaced(remedy: Remedy, snapshot: Snapshot) -> tuple[Change, ...]:
    """What differs now in each object that is replaced."""
    return compare(Definitions.of(remedy.replaced), snapshot.declared).changes


def explain_in_use(
    remedy: Remedy, snapshot: Snapshot, depths: Mapping[str, int] = MappingProxyType({})
) -> list[str]:
    """Why what is replaced cannot be deleted now, a sentence for each.

    `depths` are what the queues themselves counted: the snapshot is some seconds old.
    """
    problems: list[str] = []
    for one in remedy.replaced:
        sources = map(snapshot.declared.exchange, sorted(_sources(one, snapshot.declared.bindings)))
        problems += _explain_sources(one.name, filter(None, sources))
        problems += _explain_losing(one, snapshot, depths)
    for name in (one.name for one in remedy.replaced if isinstance(one, Queue)):
        if name in snapshot.intercepted.values():
            problems.append(explain_open(name))
        numbers = snapshot.numbers.get(name, QueueNumbers())
        problems += _explain_use(name, numbers, depths.get(name, 0))
    return problems


def _sources(one: Exchange | Queue, bindings: Iterable[Binding]) -> set[str]:
    """The exchanges that are bound to it."""
    is_queue = isinstance(one, Queue)
    return {
        b.source
        for b in bindings
        if (b.destination_is_queue, b.destination) == (is_queue, one.name)
    }


def _explain_sources(name: str, sources: Iterable[Exchange]) -> Iterator[str]:
    for one in sources:
        if one.auto_delete:
            yield (
                f"RabbitMQ deletes the auto-delete exchange “{one.name}” with its last binding, "
                f"which may be that to “{name}”. Replace this exchange first."
            )


def _explain_losing(
    one: Exchange | Queue, snapshot: Snapshot, depths: Mapping[str, int]
) -> Iterator[str]:
    if isinstance(one, Queue) and one.name.startswith(PREDECLARED_PREFIX):
        yield f"RabbitMQ named “{one.name}”: nobody else can declare it. Replace it by its client."
    if isinstance(one, Exchange) and one.type not in FORESEEABLE:
        yield (
            f"“{one.name}” has the type {one.type}, and may hold messages that a delete destroys. "
            "Replace it by your own client."
        )
    for queue in _list_feeding(one, snapshot):
        known = snapshot.numbers.get(queue.name, QueueNumbers()).messages
        held = max(depths.get(queue.name, 0), known or 0)
        if held or known is None:
            number = count_of(held, "message") if held else "an unknown number of messages"
            yield (
                f"“{queue.name}” dead-letters to “{one.name}” and holds {number}. RabbitMQ drops "
                f"those that die before “{one.name}” is declared again. Empty it first."
            )


def _list_feeding(one: Exchange | Queue, snapshot: Snapshot) -> list[Queue]:
    """The other queues that dead-letter to it at most once, also through other exchanges."""
    there, context = snapshot.definitions, Context(snapshot)
    leading = {one.name} if isinstance(one, Exchange) else _sources(one, there.bindings)
    waiting = list(leading)
    while waiting:
        name = waiting.pop()
        further = _sources(Exchange(name), there.bindings) | {
            each.name
            for each in there.exchanges
            if each.arguments.text("alternate-exchange") == name
        }
        waiting += further - leading
        leading |= further

    def feeds(queue: Queue) -> bool:
        if queue.dead_letter_exchange or isinstance(one, Exchange):
            return queue.dead_letter_exchange in leading
        keys = context.keys(queue)
        return keys is None or one.name in keys

    return [
        queue
        for queue in context.dead_lettering
        if queue.identity != one.identity and not stores_stuck_messages(queue) and feeds(queue)
    ]


def _explain_use(name: str, numbers: QueueNumbers, ready: int) -> Iterator[str]:
    """`ready` messages are counted by the queue, those that a consumer holds by the report."""
    if held := max(ready, numbers.messages or 0):
        yield f"“{name}” holds {count_of(held, 'message')}. Empty it first."
    elif numbers.messages is None:
        yield f"The number of messages of “{name}” is not known. Try again."
    if numbers.consumers is None:
        yield f"The number of consumers of “{name}” is not known. Try again."
    elif numbers.consumers:
        consumers = count_of(numbers.consumers, "consumer")
        yield f"“{name}” has {consumers}. Stop its consumers first."


def _replace(user: User, broker: Broker, wanted: Exchange | Queue, management: Management) -> None:
    """Delete it, and declare it as wanted with the bindings that it had; else as it was before.

    The audit log gets both before. Raises Refusal or BrokerError, which say what is missing now.
    """
    name, (kind, *_) = wanted.name, wanted.identity
    try:
        if isinstance(wanted, Queue):
            raw, raws = management.queue(name), management.bindings_to_queue(name)
        else:
            raw, raws = management.exchange(name), management.bindings_from(name)
            raws += management.bindings_to_exchange(name)
        # A queue cannot be bound to the default exchange: RabbitMQ does that.
        bindings = [read_binding(one) for one in raws if one.get("source")]
        sources = [management.exchange(source) for source in sorted(_sources(wanted, bindings))]
    except NotFound as error:
        raise Refusal(
            f"“{name}” or what is bound to it no longer exists. Open the finding again."
        ) from error
    _refuse_arguments(name, [raw, *raws])
    if raw.get("exclusive"):
        raise Refusal(f"“{name}” is exclusive: only the connection of its client can declare it.")
    if problems := list(_explain_sources(name, map(declared_exchange, sources))):
        raise Refusal(f"“{name}” was not replaced. {' '.join(problems)}")
    old = declared_queue(raw) if isinstance(wanted, Queue) else declared_exchange(raw)
    details = {"before": raw_definitions([old, *bindings]), "wanted": raw_definitions([wanted])}
    with (
        audit.recorded(user, f"{kind} replaced", broker=broker, what=name, details=details),
        management.patience(PATIENCE_SECONDS),
    ):
        failed: list[Refusal | BrokerError] = []
        try:
            _delete(old, bindings, management, broker.address)
            _declare(management, wanted)
        except (Refusal, BrokerError) as error:
            failed.append(error)
        sentences = [f"“{name}” was not replaced. {error}" for error in failed]
        # Whether it is deleted may be unknown. This changes nothing where it exists.
        for one in (*([old] if failed else []), *bindings):
            try:
                _declare(management, one)
            except BrokerError as error:
                failed.append(error)
                sentences.append(
                    f"The {title(one)} may be missing: {error} The entry “{kind} replaced” of the "
                    "audit log has its arguments."
                )
        if failed:
            raise type(failed[0])(" ".join(sentences)) from failed[0]


def _declare(management: Management, one: BrokerObject) -> None:
    """Declare it, and once more where nobody answers."""
    try:
        management.declare([one])
    except Unreachable:
        management.declare([one])


def _delete(
    old: Exchange | Queue, bindings: Iterable[Binding], management: Management, address: Address
) -> None:
    """Delete a queue that is empty and unused, or an exchange. Raises Refusal, BrokerError.

    RabbitMQ checks that for classic queues only. Any other is counted when no binding leads there.
    """
    if isinstance(old, Exchange):
        management.delete_exchange(old.name)
    elif old.type == "classic":
        management.delete_queue(old.name, only_if_empty=True, only_if_unused=True)
    else:
        for one in bindings:
            management.unbind(one)
        ready = live_depths(address, [old.name]).get(old.name, 0)
        numbers = newest_numbers(management, [old.name]).get(old.name, QueueNumbers())
        if problems := list(_explain_use(old.name, numbers, ready)):
            raise Refusal(" ".join(problems))
        management.delete_queue(old.name, only_if_empty=False)


def _refuse_arguments(name: str, raws: Iterable[Mapping[str, Any]]) -> None:
    """Arguments that `Arguments` has not, such as tables and void. Raises Refusal.

    The management API shows void in a binding as the text “undefined”.
    """
    if any(
        not isinstance(value, bool | int | float | str) or value == "undefined"
        for raw in raws
        for value in dict(raw.get("arguments") or {}).values()
    ):
        raise Refusal(
            f"“{name}” was not replaced: an argument of it or of its bindings is a list, a table "
            "or void, which Delayboard cannot declare. Replace it by your own client."
        )


def _complete(management: Management, policies: Sequence[Policy]) -> Iterator[Callable[[], None]]:
    """What sets each policy, with the settings and above the priority of the one in its place.

    RabbitMQ applies one policy to a queue, so a queue that got another one meanwhile keeps it.
    Raises Refusal.
    """
    found = management.policies() if policies else []
    named = {str(one.get("name")): one for one in found}
    for policy in policies:
        there, over = named.get(policy.name, {}), named.get(policy.over, {})
        kept = {k: v for k, v in (over.get("definition") or {}).items() if k not in policy.removed}
        definition = {**kept, **policy.definition}
        # The details of a queue name a new policy some seconds later.
        queue = management.queue(policy.queue)
        put_in_force([queue], found, [])
        in_force = queue["policy"] or ""
        is_set = (there.get("pattern"), there.get("definition")) == (policy.pattern, definition)
        is_taken = bool(there) and policy.over != policy.name
        if not is_set and (is_taken or in_force != policy.over):
            raise Refusal(
                f"The policy {in_force or policy.name} was set since the plan was made. "
                "Delayboard changed nothing. Open the finding again."
            )
        priority = int(over.get("priority") or 0) + (policy.over not in ("", policy.name))
        yield partial(management.set_policy, policy.name, policy.pattern, definition, priority)


@contextmanager
def _session(
    user: User, broker: Broker, title: str, owner: Topology | None, details: dict[str, Any]
) -> Iterator[Management]:
    action = "finding remedied"
    if owner is not None:
        with changing(user, owner, action, what=title, details=details) as management:
            refuse_deleted(owner)
            refuse_replacing(owner)
            yield management
        return
    with (
        audit.recorded(user, action, broker=broker, what=title, details=details),
        Management(broker.address) as management,
    ):
        yield management
