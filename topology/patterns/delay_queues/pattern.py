"""Delay queues: beside a work queue one queue for each delay, from which messages come back.

Mechanism: `<queue>_dlq_<seconds>` has a TTL of as many seconds and dead-letters through the
default exchange into `<queue>`, which stays as it is and is no part of this. A consumer that
fails publishes the message into one of them itself, and acks.
Guarantee: never before the delay; a classic queue's messages die at most once.
Cost: one queue for each delay, one publish and one hop of about a millisecond for each failure.
Hazard: nobody counts the attempts but the consumer, in a header of its own: a message that is
published again begins a new x-death from 4.0 on (tried: 15 laps give a count of 15 on 3.10.8, and
1 on 4.0.5 and 4.3.6).
Source: seed 003 ("Delayed processing in RabbitMQ with Dead Letter Exchanges").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from topology.deaths import newest_death, read_history
from topology.definitions import Definitions, is_tap
from topology.delays import format_delay
from topology.message import ATTEMPT_HEADER, Headers, Route
from topology.patterns.delay_queues import params as parameters
from topology.patterns.delay_queues import recognize as recognition
from topology.patterns.delay_queues.params import SECOND, Params, queue_name
from topology.patterns.pattern import Copy, Explanation, ParamsError, Pattern, Reading

_EXPLANATION = Explanation(
    title="Delay queues",
    summary="Retries of a work queue after a few fixed delays, each with a queue of its own.",
    mechanism=(
        "A consumer that fails publishes the message again, into the queue of the delay that it "
        "wants, and acknowledges the first copy. When the time is over the message dies back into "
        "the work queue. The work queue needs no setting for it and is never changed."
    ),
    guarantee=(
        "Never earlier than the delay, and in order within one delay. A longer delay holds up no "
        "shorter one. Messages die at most once: one whose work queue is missing then is lost."
    ),
    cost="One queue for each delay, and one publish and about a millisecond for each failure.",
    hazards=(
        "Nothing limits the attempts. The consumer must count them in a header of its own, since "
        "the count of x-death begins anew with each publish from RabbitMQ 4.0 on, and put the "
        "message aside at last and tell somebody.",
        "A consumer that acknowledges before its publish is confirmed can lose the message; one "
        "that dies in between has it delivered twice.",
        "The names hold the seconds: another delay is another queue, and the old one is empty "
        "only when its last message has left it.",
        "Publishes go through the default exchange, where no tap can see them: only what "
        "Delayboard itself publishes is known before it arrives.",
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

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight into the work queue, a delay on offer into its queue."""
        if target != params.queue:
            raise ParamsError({"target": _elsewhere(params)})
        if delay <= timedelta(0):
            return Route("", params.queue)
        if delay not in params.delays:
            offered = ", ".join(format_delay(one) for one in params.delays)
            raise ParamsError({"delay": f"The delays on offer are {offered}."})
        return Route("", queue_name(params.queue, delay))

    def delays(self, params: Params) -> Sequence[timedelta]:
        return params.delays

    def targets(self, params: Params) -> Sequence[str]:
        return (params.queue,)

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        if is_tap(target):
            return "That is Delayboard's own tap."
        if target != params.queue:
            return _elsewhere(params)
        if found.queue(target) is None:
            return f"There is no queue “{target}”: the message would be lost after its delay."
        return ""

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        unseen = "Nothing of it can be recorded: no tap sees the default exchange."
        if found.queue(params.queue) is not None:
            return (unseen,)
        return (
            f"The work queue “{params.queue}” does not exist, and is no part of this topology: "
            "what comes out of a delay is lost.",
            unseen,
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
            attempt = _counted(copy.headers) or trips + 1
            return Reading(
                "entry", params.queue, copy.routing_key, names[copy.routing_key], attempt, *last
            )
        if copy.routing_key != params.queue:
            return None
        if last[0] in names and last[1] == "expired":
            attempt = _counted(copy.headers) or trips
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
            "        # x-death is the broker's: published again, its count stays 1 from 4.0 on\n"
            '        told = ("x-death", "x-first-death-", "x-last-death-")\n'
            "        headers = properties.headers or {}\n"
            "        headers = {n: v for n, v in headers.items() if not n.startswith(told)}\n"
            f'        failed = headers.get("{ATTEMPT_HEADER}", 0) + 1\n'
            f'        properties.headers = {{**headers, "{ATTEMPT_HEADER}": failed}}\n'
            "        properties.delivery_mode = 2\n"
            "        is_over = failed > len(delays)\n"
            '        onward = parking if is_over else f"{queue}_dlq_{delays[failed - 1]}"\n'
            '        channel.basic_publish("", onward, body, properties, mandatory=True)\n'
            "        if is_over:\n"
            "            inform_someone(properties, body)\n"
            "    channel.basic_ack(method.delivery_tag)  # only what is done or published again\n"
        )


delay_queues = DelayQueues()


def _counted(headers: Headers) -> int:
    """The consumer's own count; 0 where there is none."""
    stated = headers.get(ATTEMPT_HEADER)
    is_number = isinstance(stated, int) and not isinstance(stated, bool)
    return max(0, stated) if is_number and isinstance(stated, int) else 0


def _elsewhere(params: Params) -> str:
    return f"What these queues delay goes to {params.queue} and nowhere else."
