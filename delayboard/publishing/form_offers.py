"""What the publish form offers: names from the definitions of the broker, and saved templates.

A template is saved by one operator and used by all operators of the broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import IntegrityError, transaction

from delayboard.models import PublishTemplate
from topology import audit
from topology.definitions import Definitions
from topology.delays import format_delay
from topology.models import Broker, State, Topology
from topology.patterns.pattern import ParamsError

SHORTEST = timedelta(milliseconds=1)
# Most names that the form offers: a browser lists more slowly, and nobody reads them.
_MOST_NAMES = 200
LONGEST_NAME = 100
LARGEST_BODY = 500_000


@dataclass(frozen=True)
class Offers:
    """Delays and destinations of the topology, exchanges, and routing keys of the exchange.

    `delays` is empty where any delay can be had, in steps of `step` ("" for milliseconds).
    `only_target` is "" where there are more. `bound`: the targets are bound already.
    """

    delays: tuple[str, ...] = ()
    step: str = ""
    bound: bool = False
    only_target: str = ""
    targets: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    routing_keys: tuple[str, ...] = ()


def make_offers(found: Definitions, topology: Topology | None, exchange: str) -> Offers:
    """`exchange` "" is the default exchange, which routes by names of queues."""
    found = found.without_taps().without_probes()
    queues = sorted(queue.name for queue in found.queues)
    exchanges = sorted(one.name for one in found.exchanges if one.name)
    bound = {one.routing_key for one in found.bindings if one.source == exchange}
    keys = sorted(key for key in bound if key and not set("*#") & set(key))
    offers = Offers(
        exchanges=tuple(exchanges[:_MOST_NAMES]),
        routing_keys=tuple((keys if exchange else queues)[:_MOST_NAMES]),
    )
    try:
        return _through(offers, topology, [*queues, *exchanges], found) if topology else offers
    except ParamsError:
        return offers


def _through(offers: Offers, topology: Topology, names: list[str], found: Definitions) -> Offers:
    """With the destinations that the topology has, else the names that it can reach."""
    pattern, params = topology.pattern, topology.parsed
    fixed = tuple(pattern.targets(params)[:_MOST_NAMES])
    bindings = pattern.destinations(params, found) or ()
    bound = tuple(sorted({one.destination for one in bindings})[:_MOST_NAMES])
    fitting = (name for name in names if not pattern.target_problem(params, name, found))
    if not fixed:
        internal = _find_internal(topology.broker)
        fitting = (name for name in fitting if name not in internal)
    return replace(
        offers,
        delays=tuple(format_delay(one) for one in pattern.delays(params) if one),
        step=format_delay(step)
        if (step := pattern.achievable(params, SHORTEST)) > SHORTEST
        else "",
        bound=bool(bound and not fixed),
        only_target=fixed[0] if len(fixed) == 1 else "",
        targets=fixed or bound or tuple(islice(fitting, _MOST_NAMES)),
    )


def _find_internal(broker: Broker) -> set[str]:
    """The names of queues and exchanges of topologies that no message is meant for."""
    names: set[str] = set()
    for row in Topology.objects.filter(broker=broker, state=State.APPLIED).select_related("broker"):
        made = row.definitions
        own = {queue.name for queue in made.queues} | {one.name for one in made.exchanges}
        names |= own - set(row.pattern.targets(row.parsed))
    return names


class TemplateError(ValueError):
    """Nothing was saved; the message says why."""


def save_template(
    user: AbstractBaseUser | AnonymousUser,
    broker: Broker | None,
    name: str,
    values: Mapping[str, Any],
) -> PublishTemplate:
    """Raises TemplateError."""
    if broker is None:
        raise TemplateError("Choose a topology or a broker first.")
    if not name or len(name) > LONGEST_NAME:
        raise TemplateError(f"Enter a name of at most {LONGEST_NAME} characters.")
    if len(str(values.get("body") or "")) > LARGEST_BODY:
        raise TemplateError("The body is larger than 500 kB. Shorten the body.")
    if "\\u0000" in json.dumps(values):
        # PostgreSQL has no text with it.
        raise TemplateError(
            "The template contains a NUL character. Remove it, or enter the body as base64."
        )
    try:
        with transaction.atomic():
            row = PublishTemplate.objects.create(
                broker=broker, name=name, values=dict(values), created_by_id=user.pk
            )
    except IntegrityError as error:
        raise TemplateError(f"A template “{name}” already exists. Choose another name.") from error
    audit.record(user, "template saved", broker=broker, what=name)
    return row


def delete_template(user: AbstractBaseUser | AnonymousUser, row: PublishTemplate) -> None:
    row.delete()
    audit.record(user, "template deleted", broker=row.broker, what=row.name)
