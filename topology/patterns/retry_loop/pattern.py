"""Retry loop: rejected messages wait in a dead queue and return to the input exchange.

A fanout exchange feeds the input queue. Its rejected messages pass the dead exchange into a dead
queue, and dead-letter into the input exchange after the TTL. With several timeouts the dead
exchange is a topic or headers exchange with a dead queue for each: a message keeps its key and
headers. Its alternate exchange leads all others to a dead queue of their own. A separate return
needs its own dead exchange and return exchange: a shared one sends B's failures to A (tried).
Source: seed 002 (A. Kazakov, "Delayed Retrays by RabbitMQ"). Its code makes transient exchanges,
which a restart deletes on 3.10.8 and 4.0.5 and not on 4.3.6 (tried), and has no queue type; pika
binds with the queue's name where no key is given. Its consumer reads the newest entry of x-death,
the dead queue's; the count of `rejected` in the input queue is the number of failures on every
version, also of a delayed message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.definitions import Definitions
from topology.message import Route
from topology.patterns.pattern import Pattern, too_long
from topology.patterns.retry_loop import form, objects
from topology.patterns.retry_loop import params as parameters
from topology.patterns.retry_loop.form import parse
from topology.patterns.retry_loop.keys import key_for
from topology.patterns.retry_loop.objects import binding_arguments
from topology.patterns.retry_loop.params import Params, Timeout, stray_key
from topology.structure.copies import Copy, Reading, Tap

# Retries after the first attempt, as in the article.
RETRY_COUNT = 2
_LABELS = {"key": "routing key", "header": "header “{header}”"}


class RetryLoop(Pattern, parts=(parameters, form, objects)):
    EXAMPLE = parse({"name": "service_a"})
    ATTEMPTS_COUNTED_BY = "x-death"
    CHANGE_OBSTACLE = ""

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight to the input queue, anything else into the shortest delay that is
        enough.

        With a separate return zero takes that, past whatever else is bound to the input exchange. A
        delay by routing key has a key that leads there. Raises ParamsError over the longest delay.
        """
        if delay <= timedelta(0):
            return Route(params.back_exchange, "")
        timeout = _choose_timeout(params, delay)
        if params.split == "header" and timeout not in params.unmatched:
            return Route(params.dead_exchange, "", headers={params.header: timeout.match})
        if params.split == "key":
            is_rest = timeout in params.unmatched
            key = stray_key(params) if is_rest else key_for(timeout.match)
            return Route(params.dead_exchange, key or "")
        return Route(params.dead_exchange, "")

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return _choose_timeout(params, delay).delay if delay > timedelta(0) else timedelta(0)

    def delays(self, params: Params) -> Sequence[timedelta]:
        return sorted({timeout.delay for timeout in params.all_timeouts})

    def targets(self, params: Params) -> Sequence[str]:
        return (params.input_queue,)

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        """What shares its objects, and what is lost."""
        return list(_list_remarks(params, found.without_taps()))

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """What passes the exchanges of the work queue is a publish, however they lead there."""
        reading = super().read(params, copy)
        if reading is None and copy.exchange in (params.input_exchange, params.back_exchange):
            return Reading("publish", params.input_queue, params.input_queue, timedelta(0), 0)
        return reading

    def taps(self, params: Params) -> Sequence[Tap]:
        """Beside each timeout's binding and no other, for a tap that takes all at the dead exchange
        would leave nothing to its alternate exchange."""
        entries = [
            Tap(
                params.dead_exchange,
                timeout.match if params.split == "key" else "",
                "entry",
                binding_arguments(params, timeout),
            )
            for timeout in params.timeouts
        ]
        if params.unmatched:
            source = params.unmatched_exchange or params.dead_exchange
            entries.append(Tap(source, "#", "entry"))
        arriving = sorted({params.input_exchange, params.back_exchange})
        exits = [Tap(name, "#", "exit") for name in arriving]
        return [*entries, *exits]

    def code_values(self, params: Params) -> Mapping[str, Any]:
        return {"queue": params.input_queue, "retries": RETRY_COUNT}


retry_loop = RetryLoop()


def _choose_timeout(params: Params, delay: timedelta) -> Timeout:
    enough = [timeout for timeout in params.all_timeouts if timeout.delay >= delay]
    if not enough:
        raise too_long("this loop", retry_loop.longest(params))
    return min(enough, key=lambda timeout: timeout.delay)


def _list_remarks(params: Params, found: Definitions) -> Iterator[str]:
    work, dead, back = params.input_queue, params.dead_exchange, params.back_exchange
    remedy = "" if params.return_exchange else " Use a separate return to avoid this."
    for other in _list_others(found, back, {work}):
        yield (
            f"Messages that “{work}” rejects also return to “{other}”, which is bound to "
            f"“{back}”.{remedy}"
        )
    for queue in found.dying_into(dead):
        if queue.name != work:
            yield (
                f"Messages that “{queue.name}” rejects also go to “{dead}” and return to “{work}”."
            )
    for other in _list_others(found, dead, {timeout.queue for timeout in params.all_timeouts}):
        yield f"“{other}” is bound to “{dead}” and also receives messages that “{work}” rejects."
    if params.preset == "article":
        yield (
            "The exchanges are transient. Before RabbitMQ 4.3 a restart deletes them, and "
            "RabbitMQ drops dead letters until someone declares them again."
        )
    if not params.keeps_unmatched:
        by = _LABELS[params.split].format(header=params.header)
        yield f"RabbitMQ drops a rejected message whose {by} has no timeout."


def _list_others(found: Definitions, exchange: str, own: set[str]) -> list[str]:
    return sorted({binding.destination for binding in found.leaving(exchange)} - own)
