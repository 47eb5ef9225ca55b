"""Delay queues: one queue for each delay beside a work queue, for consumers that publish again.

`<queue>_dlq_<seconds>` dead-letters through the default exchange into `<queue>`. A message that is
published again begins a new x-death from RabbitMQ 4.0 on (tried: 15 laps give a count of 15 on
3.10.8, and 1 on 4.0.5 and 4.3.6).
Source: seed 003 ("Delayed processing in RabbitMQ with Dead Letter Exchanges").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from topology.deaths import newest_death, read_history
from topology.definitions import Definitions
from topology.delays import format_delay
from topology.message import ATTEMPT_HEADER, Headers, Route
from topology.patterns.delay_queues import params as parameters
from topology.patterns.delay_queues import recognize as recognition
from topology.patterns.delay_queues.params import SECOND, Params, queue_name
from topology.patterns.pattern import Copy, Explanation, ParamsError, Pattern, Reading

_EXPLANATION = Explanation(
    title="Delay queues",
    summary="Retries of a work queue after fixed delays, with one queue per delay.",
    mechanism=(
        "If the work fails, the consumer publishes the message into the queue of a delay and "
        "acknowledges the first copy. When the TTL ends, RabbitMQ dead-letters the message "
        "into the work queue. The work queue needs no change."
    ),
    guarantee=(
        "RabbitMQ never delivers a message before its delay ends, and keeps the order within "
        "one delay. Delays do not block each other. RabbitMQ dead-letters at most once and "
        "loses a message whose work queue is missing."
    ),
    cost="One queue per delay, and one publish of about a millisecond per failure.",
    hazards=(
        "The number of attempts has no limit. The consumer must count attempts in its own "
        "header, because RabbitMQ 4.0 and later restarts the x-death count with each publish. "
        "After the last attempt the consumer must store the message elsewhere and report it.",
        "A consumer that acknowledges before RabbitMQ confirms the publish can lose the "
        "message. A crash between the two duplicates the message.",
        "The queue names contain the seconds. Another delay needs another queue, and the old "
        "queue still holds its messages.",
        "Publishers use the default exchange, which no tap can observe. Delayboard records "
        "only its own publishes before the delivery.",
    ),
    source="“Delayed processing in RabbitMQ with Dead Letter Exchanges”",
)


class DelayQueues(Pattern):
    KIND = parameters.KIND
    FIELDS = parameters.FIELDS
    EXPLANATION = _EXPLANATION
    EXAMPLE = Params("orders", (10 * SECOND, 60 * SECOND, 300 * SECOND))
    parse = staticmethod(parameters.parse)
    store = staticmethod(parameters.store)
    definitions = staticmethod(parameters.definitions)
    recognize = staticmethod(recognition.recognize)
    ATTEMPTS_COUNTED_BY = "consumer"
    CHANGE_OBSTACLE = ""

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight into the work queue, a delay on offer into its queue."""
        if target != params.queue:
            raise ParamsError({"target": super().target_problem(params, target, Definitions())})
        if delay <= timedelta(0):
            return Route("", params.queue)
        if delay not in params.delays:
            offered = ", ".join(format_delay(one) for one in params.delays)
            raise ParamsError({"delay": f"The available delays are {offered}."})
        return Route("", queue_name(params.queue, delay))

    def delays(self, params: Params) -> Sequence[timedelta]:
        return params.delays

    def targets(self, params: Params) -> Sequence[str]:
        return (params.queue,)

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        if problem := super().target_problem(params, target, found):
            return problem
        if found.queue(target) is None:
            return (
                f"The queue “{target}” does not exist, so RabbitMQ would drop the message "
                "after its delay. Create the queue first."
            )
        return ""

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        no_tap = "A tap cannot record this topology, because no tap observes the default exchange."
        if found.queue(params.queue) is not None:
            return (no_tap,)
        return (
            f"The work queue “{params.queue}” does not exist, so RabbitMQ drops messages after "
            "their delay. Create the queue.",
            no_tap,
        )

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """A copy at the default exchange, by the queue that its key names and where it died last.

        Attempts are those that the consumer counts in its header, else the trips in x-death.
        """
        if copy.exchange != "":
            return None
        names = {queue_name(params.queue, delay): delay for delay in params.delays}
        last = newest_death(copy.headers) or ("", "")
        trips = sum(read_history(copy.headers).count(name, "expired") for name in names)
        if copy.routing_key in names:
            attempt = _read_attempt(copy.headers) or trips + 1
            return Reading(
                "entry", params.queue, copy.routing_key, names[copy.routing_key], attempt, *last
            )
        if copy.routing_key != params.queue:
            return None
        if last[0] in names and last[1] == "expired":
            attempt = _read_attempt(copy.headers) or trips
            return Reading("exit", params.queue, last[0], names[last[0]], attempt, *last)
        return Reading("publish", params.queue, params.queue, timedelta(0), 0, *last)

    def consumer_example(self, params: Params) -> str:
        queue = json.dumps(params.queue, ensure_ascii=False)
        seconds = [delay // SECOND for delay in params.delays]
        return (
            f"queue, delays = {queue}, {seconds}  # seconds\n"
            'parking = queue + "_parked"\n'
            "channel.queue_declare(parking, durable=True)\n"
            "channel.confirm_delivery()\n"
            "for method, properties, body in channel.consume(queue):\n"
            "    if not work(body):\n"
            "        # From RabbitMQ 4.0 on, a new publish resets the count in x-death\n"
            '        of_broker = ("x-death", "x-first-death-", "x-last-death-")\n'
            "        headers = properties.headers or {}\n"
            "        headers = {n: v for n, v in headers.items() if not n.startswith(of_broker)}\n"
            f'        failed = headers.get("{ATTEMPT_HEADER}", 0) + 1\n'
            f'        properties.headers = {{**headers, "{ATTEMPT_HEADER}": failed}}\n'
            "        properties.delivery_mode = 2\n"
            "        is_over = failed > len(delays)\n"
            '        onward = parking if is_over else f"{queue}_dlq_{delays[failed - 1]}"\n'
            '        channel.basic_publish("", onward, body, properties, mandatory=True)\n'
            "        if is_over:\n"
            "            inform_someone(properties, body)\n"
            "    channel.basic_ack(method.delivery_tag)  # after the work or the confirm\n"
        )


delay_queues = DelayQueues()


def _read_attempt(headers: Headers) -> int:
    """The consumer's own count; 0 where there is none."""
    stated = headers.get(ATTEMPT_HEADER)
    is_number = isinstance(stated, int) and not isinstance(stated, bool)
    return max(0, stated) if is_number and isinstance(stated, int) else 0
