"""Where a replay sends each message: as its group is redirected, where it came from, elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple

from django.db import transaction
from django.utils import timezone

from delayboard.dead_letters.replay.content import unwrap
from delayboard.dead_letters.replay.options import (
    OptionError,
    Options,
    find_target_problems,
    read_batch_options,
)
from delayboard.models import MessageGroup, RedirectRule, ReplayBatch, TargetMode
from topology import audit
from topology.clients.conventions import Convention
from topology.clients.describe import Description, describe, find_library
from topology.clients.parts import Parts
from topology.deaths import Death, History, read_history
from topology.definitions import Definitions
from topology.delays import EXAMPLES, format_delay
from topology.message import Headers, Properties, Route
from topology.models import Broker, State, Topology
from topology.patterns.pattern import ParamsError
from topology.routing.matching.index import Index
from topology.routing.walk import walk

MOST_KNOWN = 20_000
UNKNOWN_TARGET = "The original target of this message is unknown. Enter an exchange and a key."
ALL_UNKNOWN_TARGETS = (
    "The original target of these messages is unknown. Enter an exchange and a key."
)
NO_QUEUE = "The queue “{queue}”, of the first failure, does not exist. Enter another target."
_REDIRECTED = "redirect rule of the group"


class Destination(NamedTuple):
    """The target of a message, and the `route` into a delay if it uses one.

    Without a target, `refusal` says why. `envelope` names the library whose envelope the body is,
    and `inside` are the properties of the message in it, None where it cannot be opened.
    """

    target: Target | None
    route: Route | None = None
    refusal: str = ""
    envelope: str = ""
    inside: Properties | None = None


def find_delay_queues(broker: Broker) -> set[str]:
    """The queues in which a message of an applied topology waits out a delay."""
    found: set[str] = set()
    for topology in Topology.objects.filter(broker=broker).exclude(state=State.DELETED):
        with suppress(ParamsError):
            pattern, params = topology.pattern, topology.parsed
            queues = pattern.delay_queues(params, pattern.definitions(params).queues)
            found |= {queue.name for queue in queues}
    return found


def find_targets(
    broker: Broker, options: Options, index: Index, own: Sequence[Convention] = ()
) -> Targets:
    """The targets of one virtual host, by its client conventions `own`.

    Raises OptionError where the options fit no message: the delay is not on offer, or leads
    nowhere.
    """
    delay: Delay | None = None
    if options.mode == TargetMode.DELAY:
        delay = find_delay(broker, options)
        delay.check(index.definitions)
    redirects = read_redirects(broker) if options.mode == TargetMode.DEFAULT else {}
    waits = find_delay_queues(broker) if options.mode != TargetMode.TYPED else ()
    return Targets(options, index, own, waits, redirects, delay)


@dataclass
class Targets:
    """Chooses the target of message after message. `waits` are the known delay queues.

    By default it is the exchange and key of the earliest death that was no expiry. If all deaths
    are expiries, what the client library wrote counts, and without that the earliest in a queue
    that is not a delay queue. If the route from that exchange reaches any queue besides the one
    where the message died, the target is that queue, through the default exchange: a fanout must
    not send copies to queues that already got theirs.
    """

    options: Options
    index: Index
    own: Sequence[Convention] = ()
    waits: Collection[str] = ()
    redirects: Mapping[int, Target] = field(default_factory=dict)
    delay: Delay | None = None
    _known: dict[tuple[str, str, str], Destination] = field(default_factory=dict)

    @cached_property
    def shared(self) -> Destination | None:
        """Where every message goes, whatever it is; None where each has its own target."""
        if self.options.mode == TargetMode.TYPED:
            return Destination(Target(self.options.exchange, self.options.key, "typed"))
        if self.delay is not None and self.delay.typed:
            return self.delay.choose(self.delay.typed, self.index.definitions)
        return None

    def choose(
        self,
        headers: Headers,
        group: int | None = None,
        read_rest: Callable[[], tuple[bytes, str]] = lambda: (b"", ""),
    ) -> Destination:
        """The destination of a message with these headers in this group.

        `read_rest` reads its body and routing key, for what no death in x-death says.
        """
        if (redirected := self.redirects.get(group or 0)) is not None:
            return Destination(redirected)
        if self.shared is not None:
            return self.shared
        history = read_history(headers)
        if history.first_failure is not None:
            return self.choose_by(history)
        body, key = read_rest()
        read = describe(headers, body, key, self.own)
        found = self.choose_by(history, read)
        if read is None or not read.is_of_failure:
            return found
        library = find_library(Parts(headers, body, key), self.own)
        opened = unwrap(Properties(headers=headers), body, self.own)
        return found._replace(
            envelope=read.library if library is not None and library.envelope else "",
            inside=opened[0] if opened else None,
        )

    def choose_by(self, history: History, read: Description | None = None) -> Destination:
        """The destination of a message with these deaths, of which its client library wrote
        `read`.
        """
        if history.first_failure is None and read is not None and read.is_of_failure:
            why = f"the queue in which it failed, as {read.library} recorded it"
            return self._place(read.queue or "", why, lambda: find_stated_target(read, self.index))
        others = (death for death in history.deaths if death.queue not in self.waits)
        death = history.first_failure or next(others, None)
        if death is None:
            return Destination(None, refusal=UNKNOWN_TARGET)
        cache_key = ("", "", death.queue)
        if self.options.mode == TargetMode.DEFAULT:
            cache_key = (death.exchange, death.routing_key, death.queue)
        if cache_key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            why = "the queue in which it was first dead-lettered"
            place = self._place(death.queue, why, lambda: find_target(death, self.index))
            self._known[cache_key] = place
        return self._known[cache_key]

    def _place(self, queue: str, why: str, find: Callable[[], Target | None]) -> Destination:
        """The destination by the mode for what failed in this queue; by default where it came
        from.
        """
        if self.delay is not None:
            return self.delay.choose(queue, self.index.definitions)
        if self.options.mode == TargetMode.FIRST_QUEUE:
            target = Target("", queue, why) if queue else None
        else:
            target = find()
        is_missing = target is None and queue and queue not in self.index.queues
        refusal = NO_QUEUE.format(queue=queue) if is_missing else UNKNOWN_TARGET
        return Destination(target, refusal="" if target else refusal)


@dataclass(frozen=True)
class Delay:
    """A delay of a topology; `typed` is where it is to lead, "" for where each message died."""

    topology: Topology
    params: Any
    delay: timedelta
    typed: str = ""

    @property
    def targets(self) -> Sequence[str]:
        """The targets to which the mode can lead; empty when these are free."""
        return self.topology.pattern.targets(self.params)

    def route(self, target: str) -> Route:
        """The route of a message to this target. Raises ParamsError."""
        return self.topology.pattern.route(self.params, self.delay, target)

    def check(self, found: Definitions) -> None:
        """Raises OptionError where no message can take it."""
        pattern = self.topology.pattern
        offered = pattern.delays(self.params)
        problem = ""
        if self.topology.is_read_by_others:
            problem = "Another consumer reads this topology, so the wait of a message is unknown."
        elif offered and not any(offered):
            problem = "This topology only retries: it cannot delay new messages."
        if problem:
            raise OptionError({"topology_id": problem})
        if any(offered) and self.delay not in offered:
            few = ", ".join(format_delay(one) for one in offered)
            raise OptionError({"delay": f"Choose one of these delays: {few}."})
        target = self.typed or (self.targets[0] if self.targets else "")
        if not target:
            return
        try:
            self.route(target)
        except ParamsError as error:
            names = {"target": "key", "delay": "delay"}
            problems = {names.get(name, ""): why for name, why in error.problems.items()}
            raise OptionError(problems) from error
        if self.typed and (refusal := self.choose(target, found).refusal):
            raise OptionError({"key": refusal})

    def choose(self, target: str, found: Definitions) -> Destination:
        """The destination of the messages that go to this target, or that first died in a queue of
        this name.
        """
        if not target:
            return Destination(
                None, refusal="The original target of this message is unknown. Enter a target."
            )
        pattern = self.topology.pattern
        if self.targets and target not in self.targets:
            few = ", ".join(self.targets[:5])
            sentence = f"This delay has no destination “{target}”. Enter one of: {few}."
            return Destination(None, refusal=sentence)
        try:
            route = self.route(target)
        except ParamsError as error:
            return Destination(None, refusal=str(error))
        if refusal := pattern.target_problem(self.params, target, found) or _explain_no_queue(
            route, found
        ):
            return Destination(None, refusal=refusal)
        time = format_delay(pattern.achievable(self.params, self.delay))
        why = f"through the delay “{self.topology.name}” for {time}, then to {target}"
        return Destination(Target("", target, why), route)


def find_delay(broker: Broker, options: Options) -> Delay:
    """The delay that was chosen. Raises OptionError when there is none (any more)."""
    row = Topology.objects.filter(pk=options.topology_id or 0, broker=broker).first()
    if row is None:
        raise OptionError({"topology_id": "There is no such topology on this broker."})
    if row.state != State.APPLIED:
        raise OptionError(
            {"topology_id": f"{row.name} is {row.get_state_display()}: apply it first."}
        )
    if options.delay is None:
        raise OptionError({"delay": f"Enter a delay such as {EXAMPLES}."})
    try:
        return Delay(row, row.parsed, options.delay, options.key)
    except ParamsError as error:
        raise OptionError({"topology_id": f"{row.name} cannot be read: {error}"}) from error


def find_delay_route(batch: ReplayBatch, target: str) -> Route:
    """The route of a message in a batch of the mode `delay` to its destination.

    Raises OptionError, and ParamsError when the topology was changed or deleted since.
    """
    return find_delay(batch.broker, read_batch_options(batch)).route(target)


def read_redirects(broker: Broker) -> dict[int, Target]:
    """Where the messages of redirected groups go, by group; merged ones as the one they are in."""
    rules = RedirectRule.objects.filter(group__broker=broker, group__merged_into=None)
    found = {rule.group_id: Target(rule.exchange, rule.routing_key, _REDIRECTED) for rule in rules}
    merged = MessageGroup.objects.filter(merged_into__in=found).values_list("pk", "merged_into")
    return {**found, **{pk: found[into] for pk, into in merged if into is not None}}


def _explain_no_queue(route: Route, found: Definitions) -> str:
    """Why what it declares cannot be declared; "" when it can."""
    there = found | route.declares
    for binding in route.declares.bindings:
        kind = "queue" if binding.destination_is_queue else "exchange"
        if there.get((kind, binding.destination)) is None:
            return f"There is no {kind} “{binding.destination}” for the delay to lead to."
    return ""


@dataclass(frozen=True)
class Target:
    """Where to publish a replay; `why` is the reason, in words."""

    exchange: str
    routing_key: str
    why: str


def find_stated_target(read: Description, index: Index) -> Target | None:
    """Where the message came from by what its client library wrote; None where that is unknown.

    An exchange and key without a queue count only if they lead to one queue: of several it cannot
    be known in which of them it failed.
    """
    exchange, key = read.exchange or "", read.routing_key or ""
    if read.exchange is not None or (read.routing_key is not None and not read.queue):
        walked = walk(index, exchange, key)
        queues = {outcome.hops[0].queue for outcome in walked.outcomes if outcome.hops}
        if queues == {read.queue} or (not read.queue and len(queues) == 1):
            return Target(exchange, key, f"where it was published, as {read.library} recorded it")
    if not read.queue or read.queue not in index.queues:
        return None
    return Target(
        "", read.queue, f"straight to {read.queue}, where it failed, as {read.library} recorded it"
    )


def find_target(death: Death, index: Index) -> Target | None:
    """Return the default target after this death; None if its queue no longer exists."""
    walked = walk(index, death.exchange, death.routing_key)
    if {outcome.hops[0].queue for outcome in walked.outcomes if outcome.hops} == {death.queue}:
        why = f"where it was published before it was first dead-lettered in {death.queue}"
        return Target(death.exchange, death.routing_key, why)
    if death.queue not in index.queues:
        return None
    return Target("", death.queue, f"straight to {death.queue}, where it was first dead-lettered")


def redirect_group(user: Any, group: MessageGroup, exchange: str, key: str) -> RedirectRule:
    """Lead the messages of the group there by default from now on, also those of drafts that are
    changed.

    Raises OptionError.
    """
    if problems := find_target_problems(exchange, key):
        raise OptionError(problems)
    with transaction.atomic():
        rule, _ = RedirectRule.objects.update_or_create(
            group=group,
            defaults={
                "exchange": exchange,
                "routing_key": key,
                "set_by": user,
                "set_at": timezone.now(),
            },
        )
        audit.record(
            user,
            "group redirected",
            broker=group.broker,
            what=str(group),
            details={"group": group.pk, "exchange": exchange, "routing_key": key},
        )
    return rule


def clear_redirect(user: Any, group: MessageGroup) -> bool:
    """End the redirect, so that messages go where they came from; returns whether there was a
    rule.
    """
    with transaction.atomic():
        deleted, _ = RedirectRule.objects.filter(group=group).delete()
        if deleted:
            audit.record(
                user,
                "group no longer redirected",
                broker=group.broker,
                what=str(group),
                details={"group": group.pk},
            )
    return bool(deleted)
