"""What a client convention reads in the messages of a group, before it is saved."""

from __future__ import annotations

from dataclasses import dataclass, replace

from delayboard.dead_letters.parked.redact_cause import hides_history
from delayboard.dead_letters.replay.batch_items import CheckedTarget
from delayboard.dead_letters.replay.options import DEFAULTS
from delayboard.dead_letters.replay.verdicts import MessageChecker
from delayboard.models import MessageGroup, ParkedMessage
from topology.clients.conventions import Convention
from topology.clients.describe import Description, describe, find_library
from topology.clients.parts import MOST_JSON_BYTES, Parts
from topology.models.client_convention import read_conventions
from topology.redaction import Redaction
from topology.snapshot import Snapshot

MOST = 10


@dataclass(frozen=True)
class Tried:
    """One message: whether it has the marks of the convention, and what is read then.

    `target` is where a replay would send it, None while the broker is unknown or a rule hides it.
    """

    row: ParkedMessage
    is_recognized: bool
    read: Description | None
    target: CheckedTarget | None


def try_convention(
    group: MessageGroup, convention: Convention, rules: Redaction, snapshot: Snapshot | None
) -> list[Tried]:
    """The newest messages of the group as the convention reads them, redacted by the rules."""
    others = [one for one in read_conventions(group.broker) if one.name != convention.name]
    own = (convention, *others)
    places = tuple(
        (name, fact.pointer) for name, facts in convention.facts.items() for fact in facts
    )
    hides = hides_history(replace(rules, own_places=(*rules.own_places, *places)))
    checker = None
    if snapshot is not None and not hides:
        checker = MessageChecker(group.broker, DEFAULTS, snapshot, own)
    rows = ParkedMessage.objects.filter(group__in=group.member_ids).select_related("broker")
    return [_try(row, convention, own, rules, checker) for row in rows.order_by("-pk")[:MOST]]


def _try(
    row: ParkedMessage,
    convention: Convention,
    own: tuple[Convention, ...],
    rules: Redaction,
    checker: MessageChecker | None,
) -> Tried:
    message = row.message if row.size <= MOST_JSON_BYTES else row.without_body
    shown = (rules.headers(message.headers), rules.body(message.body), row.routing_key)
    library = find_library(Parts(message.headers, message.body, row.routing_key), own)
    target = None
    if checker is not None:
        target = checker.check_message(row.group_id, row.queue, bytes(row.properties), row.pk)
    is_recognized = library is not None and library.name == convention.name
    return Tried(row, is_recognized, describe(*shown, own), target)
