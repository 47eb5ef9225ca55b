"""The dry run: whether each message of a replay would be delivered, in a sentence."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from analytics.events import clean
from delayboard.dead_letters.parked.failure import LONGEST
from delayboard.dead_letters.replay.batch_items import CheckedTarget, FrozenItem, SelectedMessage
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.content import count_replays, prepare_replay
from delayboard.dead_letters.replay.options import DEFAULTS, Options, find_target_problems
from delayboard.dead_letters.replay.targets import Destination, Target, find_targets
from delayboard.models import ParkedMessage
from topology import snapshots
from topology.broker.failures import explain_timeout
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.raw import is_excluded
from topology.broker.properties.read import read_properties
from topology.clients.conventions import Convention
from topology.clients.restart import explain_return
from topology.content.text import count_of
from topology.definitions import DELAY_HEADER, DELAYED_TYPE, Definitions, is_tap
from topology.delays import milliseconds
from topology.message import REPLAY_HEADER, REPLAYS_HEADER, Forwarder, Properties, Publish, Route
from topology.models import Broker
from topology.models.client_convention import read_conventions
from topology.operations.topology_rows import forwarders_at
from topology.routing.matching.delayed_exchange import delay_in_exchange_ms, kind_of
from topology.routing.matching.index import Index
from topology.routing.walk import Walk, walk
from topology.snapshot import QueueNumbers, Snapshot

IMPOSSIBLE = "The origin that it records is not a valid name. Type where to send it."
ENVELOPE = (
    "The body is an envelope that {library} put around the message, and consumers do not expect "
    "it. Send the message inside the envelope."
)
CLOSED = "Delayboard cannot read the message inside the envelope of {library}."
DELETED = "The parked message was deleted."
# Seconds that a page waits for the broker, and the age up to which a snapshot counts as current.
PATIENCE_SECONDS = 2.7
YOUNG = timedelta(seconds=5)
NOT_FINITE = (
    "A header holds NaN or an infinite number: RabbitMQ would close the connection. Edit it."
)
# Most routes whose verdict is remembered: keys and headers may differ in every message.
MOST_KNOWN = 20_000
_NONE = QueueNumbers()
RETURNED = (
    "RabbitMQ returns what an exchange of this type delays, so the publish is not confirmed. The "
    "message remains in this queue, and a copy may arrive."
)
# Outcome of a walk -> verdict, the worst first; a walk says “dropped”, a replay “lost”.
_WORST = {"dropped": "lost", "stuck": "stuck", "uncertain": "uncertain", "delivered": "delivered"}


class BrokerUnknown(BatchError):
    """The broker does not answer, so that nothing can be checked."""


class BrokerState(NamedTuple):
    """The state of a broker at this time (UTC)."""

    snapshot: Snapshot
    at: datetime

    @property
    def age_sentence(self) -> str:
        """The sentence that says of when the numbers are; "" for what was read just now."""
        if datetime.now(UTC) - self.at <= YOUNG:
            return ""
        return f"Checked against the broker as of {self.at:%H:%M:%S} UTC."


def poll_broker(broker: Broker, *, is_late_good: bool = False) -> BrokerState:
    """A new snapshot of the broker, which may have changed a second ago, with its time.

    If `is_late_good`, a broker that does not answer in time is handed out as it was seen last.
    Raises BrokerUnknown.
    """
    asked_at = datetime.now(UTC)
    known = snapshots.latest(broker.pk)
    # A snapshot that another caller finished after this call began is new enough.
    if known is None or known.tried_at < asked_at:
        known = snapshots.poll(broker, PATIENCE_SECONDS)
    if known.snapshot is not None and not known.error:
        return BrokerState(known.snapshot, known.tried_at)
    if (
        known.snapshot is None
        or not is_late_good
        or known.error != str(explain_timeout(broker.address))
    ):
        raise BrokerUnknown(f"The messages cannot be checked: {known.error}")
    return BrokerState(known.snapshot, known.snapshot.taken_at)


class MessageChecker:
    """Checks the messages of one batch. Raises OptionError where the options fit none of them.

    `own` are the client conventions, by default those in force at the broker.
    """

    def __init__(
        self,
        broker: Broker,
        options: Options,
        snapshot: Snapshot,
        own: Sequence[Convention] | None = None,
    ) -> None:
        self._routes = RouteChecker(
            snapshot.definitions,
            snapshot.consumed,
            version=snapshot.version_tuple,
            forwarders=forwarders_at(broker),
            now_ms=time.time_ns() // 1_000_000,
            most_replays=options.most_replays,
            limited=find_limited_queues(snapshot),
        )
        self._own = read_conventions(broker) if own is None else own
        self._targets = find_targets(broker, options, self._routes.index, self._own)
        self._include_repeats = options.include_repeats
        self._keeps_counters = options.keep_counters
        self._unwraps = options.unwraps

    def check_message(
        self, group: int | None, queue: str, raw: bytes | None, parked_message: int | None
    ) -> CheckedTarget:
        """A message of this group from this queue, `raw` its properties; None: it was deleted."""
        if raw is None:
            return _make_target(None, make_refused(DELETED))
        properties = read_properties(bytes(raw))

        def read_rest() -> tuple[bytes, str]:
            rows = ParkedMessage.objects.filter(pk=parked_message or 0)
            found = rows.values_list("body__data", "routing_key").first()
            return (bytes(found[0]), found[1]) if found else (b"", "")

        aim = self._targets.choose(properties.headers, group, read_rest)
        if self._unwraps and aim.inside is not None:
            properties, aim = aim.inside, aim._replace(envelope="")
        return self._check(aim, queue, properties)

    def check_rows(
        self, rows: Iterable[SelectedMessage | FrozenItem]
    ) -> list[CheckedTarget | None]:
        """The same of each of these; None for a possible repeat that is excluded."""
        return [
            None
            if row.is_repeat and not self._include_repeats
            else self.check_message(row.group, row.queue or "", row.properties, row.parked_message)
            for row in rows
        ]

    def check_queue(self, queue: str) -> CheckedTarget | None:
        """What lies in this queue, if all of it goes to one place; else None."""
        aim = self._targets.shared
        return None if aim is None else self._check(aim, queue, Properties())

    def _check(self, aim: Destination, queue: str, properties: Properties) -> CheckedTarget:
        target = aim.target
        if target is None:
            return _make_target(None, make_refused(aim.refusal))
        if find_target_problems(target.exchange, target.routing_key):
            return _make_target(None, make_refused(IMPOSSIBLE))
        verdict = self._routes.check(target, queue, properties, aim.route)
        returned = explain_return(properties.headers, self._own) if self._keeps_counters else ""
        if returned and verdict.is_good:
            verdict = replace(verdict, is_good=False, sentence=returned, ending="loops")
        elif aim.envelope and verdict.is_good:
            why = (CLOSED if self._unwraps else ENVELOPE).format(library=aim.envelope)
            verdict = replace(verdict, is_good=False, sentence=why, ending="envelope")
        return _make_target(target, verdict)


def check_default(row: ParkedMessage, snapshot: Snapshot) -> CheckedTarget:
    """The default target of one parked message."""
    checker = MessageChecker(row.broker, DEFAULTS, snapshot)
    return checker.check_message(row.group_id, row.queue, bytes(row.properties), row.pk)


def _make_target(target: Target | None, verdict: Verdict) -> CheckedTarget:
    exchange, key, why = (
        ("", "", "") if target is None else (target.exchange, target.routing_key, target.why)
    )
    return CheckedTarget(
        clean(exchange)[:LONGEST],
        clean(key)[:LONGEST],
        clean(why),
        clean(verdict.sentence),
        verdict.ending,
        verdict.is_good,
        verdict.after_ms,
    )


def is_finite(value: Any) -> bool:
    """Whether all numbers in it are such as a broker takes (RabbitMQ 3.10 to 4.3 answer NaN and
    the infinite with 541, in tables and lists too).
    """
    match value:
        case float():
            return math.isfinite(value)
        case Mapping():
            return all(is_finite(item) for item in value.values())
        case list() | tuple():
            return all(is_finite(item) for item in value)
    return True


class RouteChecker:
    """Walks from the target of each message and returns where every copy ends, or why not.

    Deaths, CC and BCC are omitted, as a replay omits them. `found` is everything in the broker,
    taps included. A message whose header counts `most_replays` replays is guarded; None guards
    none. `limited` are the queues with a maximum length, by name.
    """

    def __init__(
        self,
        found: Definitions,
        consumed: Collection[str] = (),
        *,
        version: tuple[int, ...] = (),
        forwarders: Sequence[Forwarder] = (),
        now_ms: int = 0,
        most_replays: int | None = None,
        limited: Mapping[str, LimitedQueue] = MappingProxyType({}),
    ) -> None:
        self.index = Index(found.without_taps())
        self.now_ms = now_ms
        self._consumed = frozenset(consumed)
        self._version = version
        self._forwarders = tuple(forwarders)
        self._most_replays = most_replays
        self._limited = limited
        self._found = found
        self._read = find_steering_headers(self.index, forwarders)
        self._known: dict[Hashable, Verdict] = {}
        self._indexes: dict[Hashable, Index] = {}

    def check(
        self, target: Target, source: str, properties: Properties, route: Route | None = None
    ) -> Verdict:
        """The verdict of a message with these properties from `source`. `route` leads into a delay,
        which replaces the direct publish to the target."""
        if why := self._explain_unsendable(target, properties, route):
            return make_refused(why)
        verdict = self._walk_route(target, source, properties, route)
        replays = count_replays(properties.headers)
        if self._most_replays is None or replays < self._most_replays:
            return verdict
        times, each = ("once", "") if replays == 1 else (f"{replays} times", " each time")
        sentence = f"It was replayed {times} already and dead-lettered again{each}."
        return replace(
            verdict, is_good=False, sentence=f"{sentence} {verdict.sentence}", ending="guarded"
        )

    def _walk_route(
        self, target: Target, source: str, properties: Properties, route: Route | None
    ) -> Verdict:
        found = {
            name: properties.headers[name] for name in self._read if name in properties.headers
        }
        if REPLAYS_HEADER in self._read:
            found[REPLAYS_HEADER] = count_replays(properties.headers) + 1
        headers = found if route is None else {**found, **route.make_headers(self.now_ms)}
        expiration = properties.expiration
        exchange, key = target.exchange, target.routing_key
        if route is not None:
            exchange, key = route.exchange, route.routing_key
        stated = tuple(sorted((name, repr(value)) for name, value in headers.items()))
        # The target determines what a route declares.
        cache_key = (exchange, key, target.routing_key, source, expiration, stated)
        known = self._known.get(cache_key)
        if known is None:
            walked = walk(
                self._index_of(target, route),
                exchange,
                key,
                version=self._version,
                headers=headers,
                expiration=expiration,
                consumed=self._consumed,
                forwarders=self._forwarders,
                now_ms=self.now_ms,
            )
            entered = dict.fromkeys(hop.queue for hop in walked.hops)
            limited = [self._limited[name] for name in entered if name in self._limited]
            known = make_verdict(walked, source)
            sentence = " ".join([known.sentence, *(one.sentence for one in limited)])
            known = replace(known, sentence=sentence)
            if known.is_good and any(one.is_full for one in limited):
                known = replace(known, is_good=False, ending="full")
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[cache_key] = known
        return known

    def _index_of(self, target: Target, route: Route | None) -> Index:
        if route is None or all(self.index.definitions.get(t.identity) for t in route.declares):
            return self.index
        cache_key = (route.exchange, route.routing_key, target.routing_key)
        if cache_key not in self._indexes:
            self._indexes[cache_key] = Index(self.index.definitions | route.declares)
        return self._indexes[cache_key]

    def _explain_unsendable(
        self, target: Target, properties: Properties, route: Route | None
    ) -> str:
        """Why it cannot be published; "" when it can."""
        if properties.problems:
            try:
                prepare_replay(Route("", ""), properties, b"", "")
            except FieldError as error:
                return f"Its properties cannot be edited: {error}."
        headers = {n: value for n, value in properties.headers.items() if not is_excluded(n)}
        if not is_finite(headers):
            return NOT_FINITE
        path = route or Route(target.exchange, target.routing_key)
        exchange = self._found.exchange(path.exchange)
        if exchange is None or exchange.type != DELAYED_TYPE:
            return ""
        stamped = Properties(headers={**headers, **path.make_headers(self.now_ms)})
        return explain_returned(self._found, Publish(path.exchange, path.routing_key, stamped))


def find_steering_headers(index: Index, forwarders: Sequence[Forwarder]) -> frozenset[str]:
    """The headers of a replay on which its way through this vhost can depend."""
    by_headers = {x.name for x in index.exchanges.values() if kind_of(x) == "headers"}
    bindings = index.definitions.bindings
    names = {name for b in bindings if b.source in by_headers for name in b.arguments}
    if any(exchange.type == DELAYED_TYPE for exchange in index.exchanges.values()):
        names.add(DELAY_HEADER)
    names |= {forwarder.due_header for forwarder in forwarders if forwarder.due_header}
    return frozenset(name for name in names - {REPLAY_HEADER} if not is_excluded(name))


def explain_returned(definitions: Definitions, publish: Publish) -> str:
    """Why an exchange would both keep this message and give it back; "" when it would not."""
    exchange = definitions.exchange(publish.exchange)
    if exchange is None or exchange.type != DELAYED_TYPE:
        return ""
    if delay_in_exchange_ms(exchange, publish.properties.headers) == 0:
        return ""
    return (
        f"The exchange “{publish.exchange}” is of the type {exchange.type}: it would keep the "
        "message and give it back too. Replay it to a queue through the default exchange."
    )


@dataclass(frozen=True)
class Verdict:
    """The predicted outcome of a replay; not good when the message is lost or loops back.

    `ending` and `after_ms` are those of a ReplayRoute.
    """

    is_good: bool
    sentence: str
    ending: str = "delivered"
    after_ms: int = 0


def make_refused(why: str) -> Verdict:
    """The verdict of a message that cannot be published at all."""
    return Verdict(False, why, "refused")


def make_verdict(walked: Walk, source: str) -> Verdict:
    """The verdict on a walk for a message from the queue `source`."""
    endings = {outcome.ending for outcome in walked.outcomes}
    if not walked.is_routed:
        first = walked.outcomes[0]
        kept = f"{first.kept}, then " if first.kept else ""
        ending = "uncertain" if "uncertain" in endings else "unroutable"
        return Verdict(False, f"No route: {kept}{first.why}.", ending)
    worst = next(name for ending, name in _WORST.items() if ending in endings)
    after_ms = max(milliseconds(outcome.after) for outcome in walked.outcomes)
    sentence = " ".join(outcome.sentence for outcome in walked.outcomes)
    if walked.is_only_kept:
        return Verdict(False, f"{sentence} {RETURNED}", "unroutable")
    if any(hop.queue == source for hop in walked.hops):
        return Verdict(
            False, f"The message would return to {source}. {sentence}", "loops", after_ms
        )
    return Verdict(worst == "delivered", sentence, worst, after_ms)


@dataclass(frozen=True)
class LimitedQueue:
    """`most` and `most_bytes` are None without such a limit; `has` (ready) is None when unknown."""

    name: str
    most: int | None
    most_bytes: int | None
    has: int | None
    is_consumed: bool

    @property
    def is_full(self) -> bool:
        """Whether it has its maximum of messages and no consumer; bytes are not known."""
        if self.is_consumed or self.most is None or self.has is None:
            return False
        return self.has >= self.most

    @property
    def sentence(self) -> str:
        stated = ((self.most, "message"), (self.most_bytes, "byte"))
        limits = [count_of(number, unit) for number, unit in stated if number is not None]
        most = f"“{self.name}” has a maximum length of {' or '.join(limits)}"
        if self.has is None:
            return f"{most}. Its number of messages is unknown."
        return f"{most}, and {count_of(self.has, 'message')} now."


def find_limited_queues(snapshot: Snapshot) -> Mapping[str, LimitedQueue]:
    """The queues with a maximum length by name; a stream's is how long it keeps what was read."""
    found = {}
    for queue in snapshot.definitions.queues:
        most = queue.arguments.number("x-max-length")
        most_bytes = queue.arguments.number("x-max-length-bytes")
        if queue.type == "stream" or is_tap(queue.name) or (most is None and most_bytes is None):
            continue
        numbers = snapshot.numbers.get(queue.name, _NONE)
        # Those that a consumer holds do not count.
        has = numbers.messages if numbers.ready is None else numbers.ready
        found[queue.name] = LimitedQueue(queue.name, most, most_bytes, has, bool(numbers.consumers))
    return found
