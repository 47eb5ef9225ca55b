"""Messages of which more copies arrive than anybody sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topology.definitions import has_dead_letter_name
from topology.findings.context import Context, Death, state_unless
from topology.findings.finding import rule
from topology.findings.hit import Hit
from topology.routing.matching.delayed_exchange import kind_of
from topology.routing.matching.match import Unknown, match
from topology.routing.outcome import RouteOutcome, Walk
from topology.routing.walk import walk


def _find_duplicates(context: Context) -> Iterator[Hit]:
    """Several delay queues bound to one key, whose messages arrive in one queue; and deaths."""
    for source in sorted(context.index.exchanges):
        for key, names in _delays_by_key(context, source):
            walked = walk(context.index, source, key, version=context.version)
            for arrives in sorted(_list_doubled_queues(walked)):
                ends = [one for one in walked.delivered if one.queue == arrives]
                passed = {hop.queue for one in ends for hop in one.hops}
                involved = [name for name in names if name in passed]
                if len(involved) > 1:
                    yield from _bound_too(context, source, key, involved, arrives)
    yield from _dies_twice(context)


def _bound_too(
    context: Context, source: str, key: str, names: list[str], arrives: str
) -> Iterator[Hit]:
    for name in names:
        for one in context.index.definitions.leads(source, name):
            sentence = (
                f"A message with the key “{key}” waits in “{name}” too and arrives in “{arrives}” "
                f"{len(names)} times."
            )
            evidence = context.evidence_of(one.identity, "routing_key", one.routing_key, sentence)
            # Who runs all commands must not end without any binding.
            unbind = context.admin.unbind(source, name, one.routing_key)
            yield Hit(source, evidence, () if name == names[0] else (unbind,))


def _delays_by_key(context: Context, source: str) -> Iterator[tuple[str, list[str]]]:
    """A key that matches each binding key, with the queues with a TTL that are bound by it."""
    exchange = context.index.exchanges[source]
    if kind_of(exchange) not in ("direct", "topic", "fanout"):
        return
    bound: dict[str, set[str]] = {}
    for one in context.index.definitions.leaving(source):
        there = context.index.queues.get(one.destination) if one.destination_is_queue else None
        if there and there.message_ttl_ms is not None and there.dead_letter_exchange is not None:
            # A fanout takes any key.
            words = one.routing_key.split(".") if kind_of(exchange) == "topic" else []
            key = ".".join("any" if word in ("*", "#") else word for word in words)
            key = one.routing_key if kind_of(exchange) == "direct" else key
            bound.setdefault(key, set()).add(there.name)
    yield from ((key, sorted(names)) for key, names in bound.items() if len(names) > 1)


def _list_doubled_queues(walked: Walk) -> list[str]:
    ends = Counter(outcome.queue for outcome in walked.delivered)
    return [name for name, copies in ends.items() if copies > 1]


def _dies_twice(context: Context) -> Iterator[Hit]:
    seen = set()
    for death in context.deaths:
        for name in _list_doubled_queues(death.walk):
            if (death.queue.name, name) not in seen:
                seen.add((death.queue.name, name))
                dies = f"One message that dies in “{death.queue.name}”"
                sentence = f"{dies} arrives in “{name}” twice."
                evidence = context.evidence(death.queue, "x-dead-letter-exchange", sentence)
                ends = (end for end in death.walk.delivered if end.queue == name)
                unless = state_unless(frozenset[Unknown]().union(*(end.unless for end in ends)))
                yield Hit(death.queue.dead_letter_exchange or "", evidence, unless=unless)


def _find_foreign_retries(context: Context) -> Iterator[Hit]:
    """A retry that other consumers get too, although they did not fail."""
    for death in context.deaths:
        if death.reason != "rejected":
            continue
        for back in death.back():
            if back.queue != death.queue.name or len(back.hops) < 3:
                continue
            wait = back.hops[-2].queue
            for other in death.walk.delivered:
                # It leaves the same wait for another queue.
                is_behind = len(other.hops) > 2 and other.hops[-2].queue == wait
                is_copy = is_behind and other.queue != death.queue.name
                if is_copy and not _find_catch_alls(context, wait, other.queue):
                    yield _make_hit(context, death, wait, other, back.unless | other.unless)


def _find_catch_alls(context: Context, wait: str, other: str) -> bool:
    """Whether it is bound as a copy of all that passes, such as for an archive."""
    source = context.index.queues[wait].dead_letter_exchange or ""
    exchange = context.index.exchanges.get(source)
    leads = context.index.definitions.leads(source, other)
    is_topic = exchange is not None and kind_of(exchange) == "topic"
    return is_topic and any(one.routing_key == "#" for one in leads)


def _make_hit(
    context: Context, death: Death, wait: str, other: RouteOutcome, unknown: frozenset[Unknown]
) -> Hit:
    waits = f"A message that fails in “{death.queue.name}” waits in “{wait}”"
    sentence = f"{waits}, and then “{other.queue}” gets it again too."
    there = context.index.queues[wait]
    evidence = context.evidence(there, "x-dead-letter-exchange", sentence)
    home = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": death.queue.name}
    is_shared = context.fed_by_deaths.get(wait) != [death.queue]
    repair = () if is_shared else context.redeclare(there, home)
    return Hit(there.dead_letter_exchange or "", evidence, repair, state_unless(unknown))


def _find_returned_parking(context: Context) -> Iterator[Hit]:
    """A queue for failed messages and the work queue that it is named after, which both get the
    routing key that it is bound with, the work queue by a wildcard.

    Not one for errors: they may be events that the work queue processes too.
    """
    for bound in sorted(context.index.definitions.bindings, key=lambda one: one.identity):
        source = context.index.exchanges.get(bound.source)
        if not bound.destination_is_queue or source is None or kind_of(source) != "topic":
            continue
        is_excluded = "error" in bound.destination.lower() or set("*#") & set(bound.routing_key)
        if is_excluded or not has_dead_letter_name(bound.destination):
            continue
        reached = match(context.index, source.name, (bound.routing_key,), {}, context.version)
        for name in reached.queues:
            keys = [one.routing_key for one in context.index.definitions.leads(source.name, name)]
            if has_dead_letter_name(bound.destination, name) and bound.routing_key not in keys:
                arrives = f"arrives in “{bound.destination}” and in “{name}” again"
                sentence = f"A message with the key “{bound.routing_key}” {arrives}."
                found = (bound.identity, "routing_key", bound.routing_key)
                yield Hit(source.name, context.evidence_of(*found, sentence))


DUPLICATED = rule("F17", _find_duplicates)
RETURNED_PARKING = rule("F33", _find_returned_parking)
GIVEN_TO_OTHERS = rule("F18", _find_foreign_retries)
