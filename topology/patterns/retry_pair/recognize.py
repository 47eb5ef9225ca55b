"""Retry pairs in a vhost, whole or not, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.patterns.pattern import ParamsError, Use
from topology.patterns.retry_loop.keys import matches
from topology.patterns.retry_pair.params import KIND, Params, definitions
from topology.patterns.uses import make_managed_use

# Of its six objects; a missing exchange has no bindings.
LEAST_LEFT = 4


def recognize(found: Definitions) -> Sequence[Use]:
    """Two queues, each with the exchange that feeds the other as its dead-letter exchange.

    The retry queue has a TTL, the work queue has none. Queues `<name>` and `<name>-retry` and a
    non-empty key give parameters that recreate it; an incomplete pair is recognized by them too.
    """
    return [
        use
        for queue in sorted(found.queues, key=lambda queue: queue.name)
        if queue.name.endswith("-retry")
        and (use := _find_whole(found, queue) or _find_partial(found, queue)) is not None
    ]


def _find_whole(found: Definitions, retry: Queue) -> Use | None:
    work = found.queue(retry.name.removesuffix("-retry"))
    if work is None or work.message_ttl_ms is not None or not _find_return(found, work, retry.name):
        return None
    key = _key(_find_return(found, retry, work.name))
    return _find_use(found, retry, key) if key else None


def _find_partial(found: Definitions, retry: Queue) -> Use | None:
    """The work queue, an exchange or a binding is missing, but one binding shows the key."""
    name = retry.name.removesuffix("-retry")
    work = found.queue(name)
    if retry.dead_letter_exchange != name or retry.dead_letter_routing_key is not None:
        return None
    if work and (work.dead_letter_exchange != retry.name or work.message_ttl_ms is not None):
        return None
    key = _key([*found.leads(name, name), *found.leads(retry.name, retry.name)])
    use = _find_use(found, retry, key) if key else None
    return use if use and len(use.claims) >= LEAST_LEFT else None


def _find_use(found: Definitions, retry: Queue, routing_key: str) -> Use | None:
    if retry.message_ttl is None or retry.type not in ("classic", "quorum"):
        return None
    name = retry.name.removesuffix("-retry")
    try:
        params = Params(name, retry.message_ttl, routing_key)
    except ParamsError:
        return None
    branches = ((name, retry.name), (retry.name, name))
    losses = (_explain_loss(found, found.queue(one), other) for one, other in branches)
    remarks = tuple(remark for remark in losses if remark)
    return replace(
        make_managed_use(KIND, name, params, definitions(params), found), remarks=remarks
    )


def _explain_loss(found: Definitions, queue: Queue | None, to: str) -> str:
    """What becomes of messages that die there with a key that no binding on their way takes."""
    key = queue.dead_letter_routing_key if queue else None
    if queue is None or key is None or not queue.dead_letter_exchange:
        return ""
    exchange = found.exchange(queue.dead_letter_exchange)
    bound = found.leads(queue.dead_letter_exchange, to)
    if exchange is None or any(_is_taken(exchange, binding, key) for binding in bound):
        return ""
    return (
        f"“{queue.name}” dead-letters with the routing key “{key}”, but no binding from the "
        f"exchange “{exchange.name}” to the queue “{to}” matches. RabbitMQ drops these messages."
    )


def _is_taken(exchange: Exchange, binding: Binding, key: str) -> bool:
    """Whether a message with this key takes a binding of the exchange, as far as keys decide."""
    if exchange.type == "topic":
        return matches(binding.routing_key, key)
    return exchange.type != "direct" or binding.routing_key == key


def _key(bindings: Sequence[Binding]) -> str:
    """The first that is not empty: an empty one would be read as the name."""
    return next((binding.routing_key for binding in bindings if binding.routing_key), "")


def _find_return(found: Definitions, queue: Queue, to: str) -> Sequence[Binding]:
    """The bindings by which a message that dies in `queue` may come to the other in one hop."""
    if not queue.dead_letter_exchange or queue.type not in ("classic", "quorum"):
        return ()
    return found.leads(queue.dead_letter_exchange, to)
