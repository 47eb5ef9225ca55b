"""Publishes the lines of a file, each due at a time of its own, into delay levels.

It is a publish job whose numbers are those of the lines. The process that has the file does it; the
same file again continues, and tries again what was not published. A kill leaves at most WINDOW
lines without an answer: they are published again, marked (docs/timeouts.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from threading import Event
from typing import IO, Any, NamedTuple
from uuid import UUID, uuid5

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from analytics import facts
from analytics.models import ScheduledMessage
from delayboard.models import Interception, PublishJob
from delayboard.publishing.destinations import Destinations
from delayboard.publishing.file_message import (
    LONGEST_LINE,
    FileMapping,
    Malformed,
    make_publish,
    read_line,
)
from delayboard.publishing.publish_job import Messages, carry_out, open_channel, record_job
from topology import work
from topology.broker.amqp.pipeline import Answer, Pipeline
from topology.broker.errors import Blocked, BrokerError, Unreachable
from topology.broker.properties.field_values import FieldError
from topology.content.text import count_text, is_encodable
from topology.definitions import Definitions
from topology.delays import format_span
from topology.message import Publish
from topology.models import Topology, Work, WorkState
from topology.operations.ownership import Refusal, refuse_unapplied
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.pattern import ParamsError
from topology.transfer.move import Step

KIND = "publish_file"
# Most bytes of lines that are in flight.
MOST_BYTES = LONGEST_LINE
# Most lines that are not published: more are a mistake in the file or in the mapping.
MOST_REFUSED = 10_000
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Verdict:
    """What becomes of a line: `mark` is due, waits, known, refused, unknown or malformed."""

    line: int
    mark: str
    target: str
    sentence: str
    is_repeated: bool = False


Report = Callable[[Verdict], None]


class NotPublished(Exception):
    """The line is not to be published, for the reason of its verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.sentence)
        self.verdict = verdict


class FileLine(NamedTuple):
    """A line that can be published now; `size` in bytes."""

    size: int
    declares: Definitions
    publish: Publish
    tracking_id: UUID
    verdict: Verdict


class FileReader:
    """Makes the messages of a file for one topology, and says which of them are published."""

    def __init__(self, topology: Topology, file: IO[bytes], mapping: FileMapping) -> None:
        """Reads the file. Raises Refusal when nothing could be published, and BrokerError."""
        if topology.kind != delay_levels.KIND:
            raise Refusal(
                f"“{topology.name}” is not a delay levels topology, so it cannot hold every delay."
            )
        refuse_unapplied(topology)
        self.topology, self._file, self._mapping = topology, file, mapping
        self.destinations = Destinations(topology)
        digest, self.number = sha256(), 0
        for _, line in self.lines():
            digest.update(line)
            self.number += bool(line.strip())
        self.digest = digest.hexdigest()
        self._seen: dict[tuple[str, str], int] = {}
        self.load(self.jobs.first() or PublishJob())

    @property
    def jobs(self) -> QuerySet[PublishJob]:
        """The one that published this file before, if any."""
        return PublishJob.objects.filter(topology=self.topology, file_digest=self.digest)

    def load(self, job: PublishJob) -> None:
        """Load which lines are published, open or not begun, as the job has them now."""
        self._key, self._begun = job.pk, job.begun
        self._again, self._left = frozenset(job.unanswered), frozenset(job.not_published)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """With their numbers; one over LONGEST_LINE comes in pieces, which are malformed."""
        self._file.seek(0)
        yield from enumerate(iter(lambda: self._file.readline(LONGEST_LINE + 1), b""), start=1)

    def is_begun(self, number: int) -> bool:
        return number <= self._begun

    def prepare(self, number: int, text: bytes) -> FileLine:
        """The message of a line as it is published now. Raises NotPublished and BrokerError."""
        try:
            message = read_line(text, self._mapping)
        except Malformed as error:
            raise NotPublished(Verdict(number, "malformed", "", str(error))) from error
        target, now = message.destination, timezone.now()
        if why := self._explain_known(number, message.message_id, target):
            raise NotPublished(Verdict(number, "known", target, why))
        is_repeated, left = number in self._again, message.due_at - now
        # The same in each attempt.
        tracking_id = uuid5(self._key, str(number))
        try:
            if problem := self._find_problem(number, message.message_id, target):
                raise FieldError(problem)
            params = self.topology.parsed
            route = delay_levels.route(params, max(left, timedelta(0)), target)
            publish = make_publish(
                params, message, route, tracking_id, now, may_be_duplicated=is_repeated
            )
        except (ParamsError, FieldError) as error:
            raise NotPublished(Verdict(number, "refused", target, str(error))) from error
        is_due, span = left <= timedelta(0), format_span(abs(left) // _SECOND * _SECOND)
        sentence = f"due {span} ago, published at once." if is_due else f"waits {span}."
        if is_repeated:
            sentence += " An earlier attempt began this line, so the message may be duplicated."
        verdict = Verdict(number, "due" if is_due else "waits", target, sentence, is_repeated)
        return FileLine(len(text), route.declares, publish, tracking_id, verdict)

    def _explain_known(self, number: int, message_id: str, target: str) -> str:
        """Why the line is published already; "" when nobody knows that it is."""
        if self.is_begun(number) and number not in self._again | self._left:
            self._seen.setdefault((message_id, target), number)
            return "The line was published before."
        passed = ScheduledMessage.objects.filter(
            topology=self.topology, key=message_id, destination=target
        )
        is_known = message_id and is_encodable(message_id) and passed.exists()
        return "A message with this id passed the levels to this destination." if is_known else ""

    def _find_problem(self, number: int, message_id: str, target: str) -> str:
        first = self._seen.setdefault((message_id, target), number)
        if message_id and first != number:
            return f"Line {first} has the same message id and destination."
        return self.destinations.problem(target)


def try_file(reader: FileReader, report: Report) -> None:
    """What `publish_file` would do; nothing is changed. Raises BrokerError."""
    for number, text in reader.lines():
        if text.strip():
            try:
                verdict = reader.prepare(number, text).verdict
                reader.destinations.take(verdict.target)
            except NotPublished as error:
                verdict = error.verdict
            report(verdict)


def publish_file(
    user: Any, reader: FileReader, file_name: str, report: Report, *, rate: float, stop: Event
) -> str:
    """Publish what was not published before; why it ended before the last line, "" if not.

    Raises Refusal when another process publishes the file.
    """
    topology = reader.topology
    try:
        with transaction.atomic():
            job = reader.jobs.select_for_update().first() or PublishJob(
                topology=topology,
                broker=topology.broker,
                file_digest=reader.digest,
                number=reader.number,
                rate=rate,
            )
            ended = job.work if job.work_id and job.work.is_ended else None
            if ended is not None or not job.work_id:
                job.work = work.create(
                    KIND, topology.broker_id, broker=topology.broker, user=user, total=job.number
                )
                job.save()
            if ended is not None:
                ended.delete()
    except IntegrityError as error:
        raise Refusal("Another process began to publish this file just now.") from error
    work.resume(job.work)
    claimed = work.claim_this(job.work, f"{work.name_process()} (command)")
    if claimed is None:
        seconds = work.LEASE.total_seconds()
        raise Refusal(
            "Another process publishes this file. Wait until it ends, or if it was killed, "
            f"{seconds:.0f} seconds."
        )
    # With the lease nobody else changes the row.
    job.refresh_from_db()
    reader.load(job)
    job.file_name, job.rate, job.created_by = file_name[:255], rate, user
    job.returned = job.unknown = 0
    job.save()
    record_job(user, "publish job requested", job, "done")

    def publish_lines(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
        carry_out(FileLines(job, work.lease_of(claimed), reader, report), stop, alive)

    work.attempt(publish_lines, claimed, stop=stop)
    job.work.refresh_from_db()
    is_done = job.work.state == WorkState.DONE
    return "" if is_done else f"Stopped at line {job.begun}. {job.work.error}".strip()


class FileLines(Messages):
    """The lines of a file with their answers; those in `_left` are not published."""

    channel: Pipeline[FileLine]

    def __init__(
        self, job: PublishJob, lease: work.Lease, reader: FileReader, report: Report
    ) -> None:
        super().__init__(job, lease)
        self._reader, self._report, self._lines = reader, report, reader.lines()
        self._left = set[int](job.not_published)
        # What may have arrived, or is lost, is for the next run.
        self._next = set[int]()
        self._is_read = False
        self._size = 0
        # By destination: why it is not bound; "" when it is.
        self._declared: dict[str, str] = {}
        self._confirmed: list[FileLine] = []
        # Confirmed since the last look: where a binding is lost, a tap beside it confirms alone.
        self._unproven: list[FileLine] = []

    @property
    def is_exhausted(self) -> bool:
        return self._is_read

    @property
    def is_complete(self) -> bool:
        """Whether each line has its answer, or is for the next run."""
        return self._is_read and self.unanswered <= self._next

    @contextmanager
    def ready(self) -> Iterator[Pipeline[Any]]:
        try:
            with open_channel(self.job.broker) as self.channel:
                yield self.channel
        finally:
            self.check()

    def take(self, room: int) -> list[Step[Any]]:
        """Store the next lines as begun, and return their messages.

        Raises Stopped, BrokerError, and Refusal when the rest cannot be published either.
        """
        self._declared = {}
        steps: list[Step[Any]] = []
        for _ in range(min(room, self._limiter.allows(time.monotonic()))):
            if self.failure or self._size > MOST_BYTES:
                break
            number, text = next(self._lines, (0, b""))
            if not number:
                self._is_read = True
                break
            if text.strip() and (line := self._prepare(number, text)):
                self._size += line.size
                steps.append(Step(line, line.publish))
        for line, _ in steps:
            self._left.discard(line.verdict.line)
            self.unanswered.add(line.verdict.line)
            self.job.repeated += line.verdict.is_repeated
        self.write()
        self._limiter.take(len(steps))
        return steps

    def _prepare(self, number: int, text: bytes) -> FileLine | None:
        """The line counts as not published until it is begun. Raises BrokerError and Refusal."""
        if not self._reader.is_begun(number):
            self.job.begun = number
            self._left.add(number)
        try:
            line = self._reader.prepare(number, text)
            self._declare(line)
        except NotPublished as error:
            if error.verdict.mark == "known":
                self.job.published += number in self._left or number in self.unanswered
                self._settle(error.verdict)
            else:
                self._refuse(error.verdict)
            return None
        return line

    def _declare(self, line: FileLine) -> None:
        """Bind its destination, once for the lines that are taken together.

        Raises NotPublished where RabbitMQ refuses it, BrokerError and Refusal.
        """
        target = line.verdict.target
        if target not in self._declared:
            wanted = Interception.without_replaced(line.declares, self._reader.topology.broker)
            self._declared[target] = ""
            try:
                with self._reader.destinations.owning(target, wanted) as declared:
                    self.channel.declare(wanted)
                    declared()
            except (Unreachable, Blocked):
                raise
            except BrokerError as error:
                self._declared[target] = str(error)
        if why := self._declared[target]:
            raise NotPublished(replace(line.verdict, mark="refused", sentence=why))

    def settle(self, answers: Sequence[tuple[Any, Answer]]) -> None:
        """Count them; stored with the next lines, at the latest by `turn` or at the end."""
        for line, answer in answers:
            verdict: Verdict = line.verdict
            self._size -= line.size
            if answer.kind == "confirmed":
                self.job.published += 1
                self._confirmed.append(line)
                self._unproven.append(line)
                self._settle(verdict)
            elif answer.kind == "nacked":
                self.job.unknown += 1
                self._next.add(verdict.line)
                self.job.returned_why = answer.error
                self._report(replace(verdict, mark="unknown", sentence=answer.error))
            elif answer.kind != "unknown":
                # What may have arrived at the first attempt is published again with a mark.
                if not answer.may_have_arrived:
                    self.unanswered.discard(verdict.line)
                self._refuse(replace(verdict, mark="refused", sentence=answer.error))
            self.job.repeated += answer.again
        self._is_written = False

    def _settle(self, verdict: Verdict) -> None:
        self.unanswered.discard(verdict.line)
        self._left.discard(verdict.line)
        self._report(verdict)

    def _refuse(self, verdict: Verdict) -> None:
        (self._next if verdict.line in self.unanswered else self._left).add(verdict.line)
        self.job.returned += 1
        self.job.returned_why = verdict.sentence
        self._report(verdict)
        if self.job.returned > MOST_REFUSED:
            number = count_text(MOST_REFUSED)
            self.failure = f"More than {number} lines were not published. Check the file."

    def write(self) -> None:
        """Store how far it is, and what was published. Raises Stopped when another has the work."""
        job, now = self.job, timezone.now()
        with transaction.atomic():
            super().write()
            PublishJob.objects.filter(pk=job.pk).update(not_published=sorted(self._left))
            for line in self._confirmed:
                facts.state(
                    kind="published",
                    broker=job.broker,
                    topology=job.topology,
                    message=line.publish,
                    at=now,
                    destination=line.verdict.target,
                    tracking_id=str(line.tracking_id),
                )
        self._confirmed = []

    def check(self) -> None:
        """Look at the bindings; what may be lost since the last look is for the next run, marked.

        Raises Refusal when the levels do not stand, BrokerError when the broker cannot be seen.
        """
        unproven, self._unproven = self._unproven, []
        failure: Refusal | BrokerError | None = None
        try:
            if unproven:
                self._reader.destinations.check_again()
        except (Refusal, BrokerError) as error:
            failure = error
        for verdict in (line.verdict for line in unproven):
            why = str(failure or "") or self._reader.destinations.problem(verdict.target)
            if why:
                self.unanswered.add(verdict.line)
                self.job.published -= 1
                self._refuse(replace(verdict, mark="lost", sentence=f"It may be lost. {why}"))
        self.write()
        self._checked_at = time.monotonic()
        if failure is not None:
            raise failure
