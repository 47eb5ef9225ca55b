"""One import of timeouts: what each line becomes, what was written down, what is on its way."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from analytics import facts
from delayboard.models import ImportedTimeout
from delayboard.publishing.destinations import Destinations
from delayboard.publishing.intercepted import without_intercepted
from delayboard.publishing.timeout_import.import_tally import LineResult, Tally
from delayboard.publishing.timeout_import.timeout import (
    Malformed,
    Timeout,
    line_digest,
    line_key,
    publish_at,
    read_line,
    route_at,
)
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import Blocked, BrokerError, Unreachable
from topology.broker.properties.field_values import FieldError
from topology.content.text import count_text
from topology.definitions import Definitions
from topology.delays import format_span
from topology.message import Publish, Route
from topology.models import Topology
from topology.operations.ownership import Refusal
from topology.patterns.pattern import ParamsError

_AGAIN = "Import the file again to publish it once more, marked as a possible duplicate."
_ASTRAY = "The message may be lost. Import the file again to publish it once more."


@dataclass(frozen=True)
class Item:
    """A line that can be published now."""

    number: int
    key: str
    timeout: Timeout
    route: Route
    publish: Publish
    tracking_id: uuid.UUID
    earlier: ImportedTimeout | None

    def verdict(self) -> LineResult:
        late = timezone.now() - self.timeout.due_at
        is_due = late >= timedelta(0)
        when = f"due {_rough(late)} ago, published at once" if is_due else f"waits {_rough(-late)}"
        again = (
            " An earlier import began this line, so the message may be duplicated."
            if self.earlier
            else ""
        )
        return LineResult(
            self.number,
            "due" if is_due else "waits",
            self.timeout.destination,
            f"{when}.{again}",
            self.earlier is not None,
        )


class LineChecker:
    """The state of one import: what it checked, which lines it has read, their outcomes."""

    def __init__(self, topology: Topology, file_name: str) -> None:
        self.topology = topology
        self.destinations = Destinations(topology)
        self.tally = Tally(unbound=self.destinations.unbound)
        self._file_name = file_name
        # Confirmed since the last look: where a binding is lost, a tap beside it confirms alone.
        self._unproven: list[tuple[Item, LineResult]] = []
        self._equals: Counter[str] = Counter()
        self._seen: dict[str, int] = {}

    def count(self, verdict: LineResult, report: Callable[[LineResult], None]) -> None:
        self.tally.add(verdict)
        report(verdict)

    def check_again(self, report: Callable[[LineResult], None], *, is_last: bool = False) -> None:
        """Look at the bindings where the last look is old; what went astray since is refused.

        Raises Refusal when the levels do not stand. Raises BrokerError when the broker cannot be
        seen; then the same lines wait for the next look.
        """
        if not self._unproven or not (is_last or self.destinations.is_old):
            return
        try:
            self.destinations.check_again()
            checked = [
                (one, self.destinations.problem(one[1].destination)) for one in self._unproven
            ]
        except Refusal as error:
            unproven, self._unproven = self._unproven, []
            self._take_back(unproven, str(error), report)
            raise
        self._unproven = []
        for one, problem in checked:
            if problem:
                self._take_back([one], problem, report)

    @property
    def unproven_sentence(self) -> str:
        """Which published lines no look has checked since; "" without such a line."""
        if not self._unproven:
            return ""
        return (
            " Published lines whose bindings were not checked: "
            f"{count_text(len(self._unproven))}, from line {self._unproven[0][0].number} on. "
            "Their messages may be lost."
        )

    def _take_back(
        self,
        published: Sequence[tuple[Item, LineResult]],
        why: str,
        report: Callable[[LineResult], None],
    ) -> None:
        """They count as begun, so that the next import publishes them, marked."""
        for item, verdict in published:
            row = ImportedTimeout.objects.filter(topology=self.topology, key=item.key)
            row.update(published_at=None)
            self.tally.remove(verdict)
            sentence = f"{_ASTRAY} {why}"
            self.count(LineResult(item.number, "refused", verdict.destination, sentence), report)

    def check(self, number: int, line: bytes) -> Item | LineResult:
        """What to publish, or why not. Raises BrokerError when it cannot look."""
        try:
            timeout = read_line(line)
        except Malformed as error:
            return LineResult(number, "malformed", "", str(error))
        key = self._key(timeout, line)
        target = timeout.destination
        first = self._seen.setdefault(key, number)
        if first != number:
            sentence = f"Line {first} has the same message id and destination."
            return LineResult(number, "refused", target, sentence)
        earlier = ImportedTimeout.objects.filter(topology=self.topology, key=key).first()
        if earlier and earlier.published_at:
            when = f"{earlier.published_at:%Y-%m-%d %H:%M:%S} UTC"
            return LineResult(
                number, "known", target, f"The timeout was already published at {when}."
            )
        if problem := self.destinations.problem(target):
            return LineResult(number, "refused", target, problem)
        return self._item(number, key, timeout, earlier)

    def _key(self, timeout: Timeout, line: bytes) -> str:
        if timeout.message_id:
            return line_key(timeout, self._file_name, "", 0)
        digest = line_digest(line)
        self._equals[digest] += 1
        return line_key(timeout, self._file_name, digest, self._equals[digest] - 1)

    def _item(
        self, number: int, key: str, timeout: Timeout, earlier: ImportedTimeout | None
    ) -> Item | LineResult:
        tracking_id = earlier.tracking_id if earlier else uuid.uuid4()
        now, params = timezone.now(), self.topology.parsed
        try:
            route = route_at(params, timeout, now)
            publish = publish_at(params, timeout, route, tracking_id, now)
        except (ParamsError, FieldError) as error:
            return LineResult(number, "refused", timeout.destination, str(error))
        return Item(number, key, timeout, route, publish, tracking_id, earlier)

    def begin(self, item: Item, declare: Callable[[Definitions], None]) -> Item | LineResult:
        """Declare its objects, and save that its publishing begins; a verdict if refused.

        Raises BrokerError, and Refusal when the levels do not exist: then the rest cannot succeed
        either.
        """
        target = item.timeout.destination
        declares = without_intercepted(item.route.declares, self.topology.broker)
        try:
            with self.destinations.owning(target, declares) as declared:
                declare(declares)
                declared()
        except (Unreachable, Blocked):
            raise
        except BrokerError as error:
            return LineResult(item.number, "refused", target, str(error))
        if item.earlier:
            ImportedTimeout.objects.filter(pk=item.earlier.pk).update(may_be_doubled=True)
        else:
            ImportedTimeout.objects.create(
                topology=self.topology,
                key=item.key,
                destination=target,
                due_at=item.timeout.due_at,
                tracking_id=item.tracking_id,
            )
        return item

    def settle(self, item: Item, answer: Answer) -> LineResult:
        """Store that it was published, or that the broker refused it; what may have arrived stays
        begun, so that the next import marks it.
        """
        row = ImportedTimeout.objects.filter(topology=self.topology, key=item.key)
        target = item.timeout.destination
        if answer.kind == "nacked":
            sentence = f"{answer.error} {_AGAIN}"
            return LineResult(item.number, "unknown", target, sentence)
        if answer.kind != "confirmed":
            if item.earlier is None:
                row.delete()
            return LineResult(item.number, "refused", target, answer.error)
        now = timezone.now()
        with transaction.atomic():
            row.update(published_at=now)
            facts.state(
                kind="published",
                broker=self.topology.broker,
                topology=self.topology,
                message=item.publish,
                at=now,
                destination=target,
                tracking_id=str(item.tracking_id),
            )
        verdict = item.verdict()
        self._unproven.append((item, verdict))
        return verdict


def _rough(delay: timedelta) -> str:
    return format_span(timedelta(seconds=delay // timedelta(seconds=1)))
