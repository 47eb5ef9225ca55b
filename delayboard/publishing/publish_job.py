"""Publishes many equal messages at a rate, as work of the worker or of a command.

A message's number is stored before the message is sent, and its answer afterwards. A kill leaves at
most WINDOW numbers without an answer: the next attempt publishes these again with the same
message id, and marks them. The counts in the row are of answers only, so they stay true.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from delayboard.models import PublishJob
from delayboard.publishing.publish_message import (
    AlreadySent,
    OutgoingMessage,
    Prediction,
    declaring,
    leave_intercepted,
)
from topology import audit, work
from topology.broker.amqp.pipeline import Answer, Pipeline, pipeline
from topology.broker.errors import Blocked, alarm_sentence
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties, read_properties
from topology.graph.live_values import make_version
from topology.message import Publish, Route
from topology.models import Broker, Work, WorkState
from topology.operations.answers import NackCheck, TapCheck, find_known
from topology.operations.ownership import Refusal, refuse_unapplied
from topology.patterns.pattern import ParamsError
from topology.transfer.move import RateLimiter, Step, move
from topology.transfer.prepare import prepare

KIND = "publish"
MOST_MESSAGES = 100_000
HIGHEST_RATE = 5_000
# Largest body: a whole window of bodies is in memory.
LARGEST_BODY = 256 * 1024
# Messages that a kill can repeat.
WINDOW = 100
PULSE_SECONDS = 0.2
ALIVE_SECONDS = 0.9
WRITE_SECONDS = 0.2
# Seconds between two checks for alarms, and whether a queue other than a tap gets the messages.
CHECK_SECONDS = 5.0
ENDS = {
    WorkState.DONE: "done",
    WorkState.FAILED: "failed",
    WorkState.CANCELLED: "stopped",
}


def request_job(
    user: Any,
    broker: Broker,
    outgoing: OutgoingMessage,
    prediction: Prediction,
    *,
    number: int,
    rate: float,
) -> PublishJob:
    """Let a worker publish so many of the message.

    Raises Refusal, FieldError when AMQP cannot carry a header or property, and AlreadySent when
    the job with this id was requested before.
    """
    _refuse_unfit(outgoing, prediction)
    stated = {"delivery_mode": 2, **outgoing.properties}
    properties = build_properties(outgoing.headers, **stated)
    try:
        with transaction.atomic():
            own = work.create(KIND, broker.pk, broker=broker, user=_account(user), total=number)
            job = PublishJob.objects.create(
                id=outgoing.id,
                broker=broker,
                topology=outgoing.topology,
                work=own,
                created_by=_account(user),
                exchange=outgoing.route.exchange,
                routing_key=outgoing.route.routing_key,
                target=outgoing.target,
                delay_ms=outgoing.delay // timedelta(milliseconds=1),
                properties=properties.raw,
                body=outgoing.body,
                number=number,
                rate=rate,
            )
            record_job(user, "publish job requested", job, "done")
    except IntegrityError as error:
        raise AlreadySent(str(outgoing.id)) from error
    return job


def stop_job(user: Any, job: PublishJob) -> bool:
    """Let it end within a second; False when it has ended."""
    if job.work.is_ended:
        return False
    with transaction.atomic():
        record_job(user, "publish job stop requested", job, "done")
        work.cancel(job.work)
        if Work.objects.filter(pk=job.work_id, state=WorkState.CANCELLED).exists():
            _delete_content(job)
    return True


def make_record(job: PublishJob) -> dict[str, Any]:
    """The document of the API, from which the command writes its sentences too."""
    columns = ("number", "published", "returned", "returned_why", "unknown", "repeated")
    return {name: getattr(job, name) for name in columns} | {
        "id": job.pk,
        "broker": job.broker.slug,
        "state": job.work.state,
        "error": job.work.error,
    }


def make_job_version(job: PublishJob) -> str:
    """Changes with what its page shows of its progress."""
    own = job.work
    state = (str(own.state), own.error, own.cancel_requested, job.returned_why)
    return make_version(*state, job.published, job.returned, job.unknown, job.repeated)


def read_id_base(job: PublishJob) -> str:
    """What the message ids begin with, before the number of the message."""
    return read_properties(bytes(job.properties)).message_id or str(job.pk)


def attend(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Go on with a job, and delete its content with its end. Raises as `work.attempt` expects."""
    job = PublishJob.objects.select_related("broker", "topology", "created_by").get(work=claimed)
    carry_out(Messages(job, work.lease_of(claimed)), stop, alive)


def carry_out(messages: Messages, stop: Event, alive: Callable[[], None]) -> None:
    """Publish the messages, and end their work. Raises as `work.attempt` expects."""
    job, lease = messages.job, messages.lease
    try:
        _publish(messages, stop, alive)
    except work.Stopped:
        _end(job, lease, WorkState.CANCELLED)
    except (Refusal, work.Failed) as error:
        _end(job, lease, WorkState.FAILED, str(error))
    else:
        if messages.failure:
            _end(job, lease, WorkState.FAILED, messages.failure)
        elif messages.is_complete:
            _end(job, lease, WorkState.DONE)
        elif stop.is_set():
            raise work.Ending
        else:
            raise work.Later("RabbitMQ did not confirm all messages in time.")


class Messages:
    """The messages of a job, with their answers."""

    def __init__(self, job: PublishJob, lease: work.Lease) -> None:
        self.job = job
        self.unanswered = set[int](job.unanswered)
        self.failure = ""
        self.lease = lease
        self._again = deque(sorted(self.unanswered))
        self._properties = read_properties(bytes(job.properties))
        self._id_base = read_id_base(job)
        self._body = bytes(job.body)
        self._limiter = RateLimiter(job.rate, time.monotonic())
        self._is_written = True
        self._written_at = 0.0
        self._pulsed_at = 0.0
        self._alive_at = 0.0
        self._checked_at = 0.0
        self.route = Route(job.exchange, job.routing_key)
        # Declares what the route needs.
        self.declare: Callable[[], None] = lambda: None
        self._declared_at = float("-inf")

    @property
    def is_complete(self) -> bool:
        """Whether each message has its answer."""
        return self.is_exhausted and not self.unanswered

    @property
    def is_exhausted(self) -> bool:
        return not self._again and self.job.begun >= self.job.number

    @contextmanager
    def ready(self) -> Iterator[Pipeline[Any]]:
        """The channel to publish on; what the route needs is declared. Raises BrokerError."""
        broker, outgoing = self.job.broker, leave_intercepted(_outgoing(self.job), self.job.broker)
        self.route = outgoing.route
        with declaring(broker, outgoing) as declared, open_channel(broker) as channel:
            self.declare = partial(channel.declare, outgoing.route.declares)
            self.declare_again()
            declared()
            yield channel

    def take(self, room: int) -> list[Step[int]]:
        """Store the next numbers and return their messages. Raises Stopped and BrokerError."""
        job, again = self.job, self._again
        remaining = len(again) + job.number - job.begun
        number = min(room, self._limiter.allows(time.monotonic()), remaining)
        if number <= 0 or self.failure:
            return []
        self.declare_again()
        repeats = [again.popleft() for _ in range(min(number, len(again)))]
        fresh = range(job.begun + 1, job.begun + 1 + number - len(repeats))
        job.begun += len(fresh)
        job.repeated += len(repeats)
        self.unanswered.update(fresh)
        self.write()
        self._limiter.take(number)
        steps = [Step(one, self.make(one, may_be_duplicated=True)) for one in repeats]
        return steps + [Step(one, self.make(one)) for one in fresh]

    def declare_again(self) -> None:
        """Declare at the start, and within the lease of the route. Raises BrokerError."""
        now, lease = time.monotonic(), self.route.lease
        longest = float("inf") if lease is None else lease.total_seconds() / 2
        if now - self._declared_at > longest or self._declared_at < 0:
            self.declare()
            self._declared_at = now

    def make(self, number: int, *, may_be_duplicated: bool = False) -> Publish:
        """The message with this number, as it is published now."""
        return prepare(
            self.route,
            self._properties,
            self._body,
            {},
            is_new=True,
            message_id=f"{self._id_base}-{number}",
            may_be_duplicated=may_be_duplicated,
        )

    def settle(self, answers: Sequence[tuple[int, Answer]]) -> None:
        """Count them; stored with the next numbers, at the latest by `turn` or at the end."""
        job = self.job
        for number, answer in answers:
            if answer.kind == "unknown":
                continue
            job.repeated += answer.again
            self.unanswered.discard(number)
            job.published += answer.kind == "confirmed"
            job.unknown += answer.kind == "nacked"
            job.returned += answer.kind not in ("confirmed", "nacked")
            job.returned_why = answer.error or job.returned_why
            if answer.kind == "failed":
                self.failure = answer.error
        self._is_written = False

    def write(self) -> None:
        """Store how far it is. Raises Stopped when another has the work."""
        job = self.job
        with transaction.atomic():
            if not self.lease.renew(job.answered, job.number):
                raise work.Stopped("Another worker took over this task.")
            job.unanswered = sorted(self.unanswered)
            names = ("begun", "unanswered", "published", "returned", "returned_why", "unknown")
            PublishJob.objects.filter(pk=job.pk).update(
                **{name: getattr(job, name) for name in (*names, "repeated")}
            )
        self._is_written, self._written_at = True, time.monotonic()

    def turn(self, alive: Callable[[], None]) -> None:
        """Raises Stopped when it shall end, Failed, and BrokerError during an alarm."""
        now = time.monotonic()
        if not self._is_written and now - self._written_at > WRITE_SECONDS:
            self.write()
        if now - self._pulsed_at > PULSE_SECONDS:
            self.pulse(alive)
        if now - self._checked_at > CHECK_SECONDS:
            self.check()

    def pulse(self, alive: Callable[[], None]) -> None:
        """Raises Stopped when it shall end."""
        self._pulsed_at = time.monotonic()
        self.lease.pulse(self.job.answered, self.job.number)
        if self._pulsed_at - self._alive_at > ALIVE_SECONDS:
            self._alive_at = self._pulsed_at
            alive()

    def check(self) -> None:
        """Raises BrokerError during an alarm, Failed where only a tap of ours gets the messages,
        and Stopped when it shall end.
        """
        broker = self.job.broker
        with Management(broker.address) as management:
            if alarms := management.alarms():
                raise Blocked(alarm_sentence(alarms))
            self.write()
            why = TapCheck(management, find_known(broker)).explain_loss(self.make(0))
        # After the answers: a slow broker is not asked again at once.
        self._checked_at = time.monotonic()
        if why:
            raise work.Failed(
                f"{why} RabbitMQ confirms such messages, so those of the last "
                f"{CHECK_SECONDS:.0f} seconds may be lost."
            )


def _publish(messages: Messages, stop: Event, alive: Callable[[], None]) -> None:
    """Raises Refusal, Failed, BrokerError and Stopped."""
    job = messages.job
    # A requested stop needs no broker.
    messages.pulse(alive)
    with messages.ready() as channel:
        messages.check()
        if job.started_at is None:
            job.started_at = timezone.now()
            job.save(update_fields=["started_at"])
        try:
            move(
                messages,
                channel,
                window=WINDOW,
                is_stopping=lambda: stop.is_set() or bool(messages.failure),
                turn=lambda: messages.turn(alive),
                explain_nack=NackCheck(job.broker).settle,
            )
        finally:
            messages.write()
    messages.check()
    if messages.failure:
        raise work.Failed(messages.failure)


def _outgoing(job: PublishJob) -> OutgoingMessage:
    """The message without its content. Raises Refusal when its topology changed meanwhile."""
    topology = job.topology
    if topology is None:
        return OutgoingMessage(Route(job.exchange, job.routing_key), b"")
    refuse_unapplied(topology)
    delay = timedelta(milliseconds=job.delay_ms)
    try:
        route = topology.pattern.route(topology.parsed, delay, job.target)
    except ParamsError as error:
        raise Refusal(f"“{topology.name}” was edited: {error}") from error
    return OutgoingMessage(route, b"", topology=topology, target=job.target)


def _refuse_unfit(outgoing: OutgoingMessage, prediction: Prediction) -> None:
    if prediction.walk.is_only_kept:
        raise Refusal(
            "RabbitMQ returns each message that a delayed exchange keeps, so the job could not "
            "count what is published. Publish through another topology, or publish single messages."
        )
    if len(outgoing.body) > LARGEST_BODY:
        raise Refusal("The body of many messages can be at most 256 KiB. Shorten the body.")


def open_channel(broker: Broker) -> AbstractContextManager[Pipeline[Any]]:
    return pipeline(broker.address, "publish job")


def _end(job: PublishJob, lease: work.Lease, state: WorkState, error: str = "") -> None:
    with transaction.atomic():
        if lease.end(state, error):
            _delete_content(job)
            record_job(job.created_by, "publish job ended", job, error or ENDS[state])


def _delete_content(job: PublishJob) -> None:
    """All but the start of the message ids, which the page shows."""
    kept = build_properties(message_id=read_properties(bytes(job.properties)).message_id)
    PublishJob.objects.filter(pk=job.pk).update(properties=kept.raw, body=b"")


def record_job(user: Any, action: str, job: PublishJob, outcome: str) -> None:
    names = ("number", "rate", "published", "returned", "unknown", "repeated")
    details = {"job": str(job.pk), **{name: getattr(job, name) for name in names}}
    what = f"{job.number} messages to {job.destination}"
    audit.record(user, action, broker=job.broker, what=what, outcome=outcome, details=details)


def _account(user: Any) -> Any:
    return user if user is not None and user.is_authenticated else None
