"""Many messages at a rate: the counts are those of the broker, also after a death."""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from delayboard.models import PublishJob
from delayboard.publishing import publish_job
from delayboard.publishing.publish_job import KIND, WINDOW, Messages
from tests.brokers import Vhost
from tests.builders import address_of, applied_levels, eventually, make_broker
from tests.real_broker.refusing import SAID, refuse_beside
from topology import work
from topology.broker.amqp.consumer import getter
from topology.broker.errors import alarm_sentence
from topology.broker.management.client import Management
from topology.definitions import TAP_PREFIX, Binding, Exchange, Queue
from topology.management.exit_codes import ExitCode
from topology.message import DOUBLED_HEADER, Message
from topology.models import AuditEntry, Work, WorkState
from topology.patterns.delay_levels.params import Params

pytestmark = pytest.mark.django_db(transaction=True)


class Death(BaseException):
    """The process ends here."""


def publish(vhost: Vhost, number: int, queue: str = "work") -> PublishJob:
    broker = make_broker(vhost)
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    options = ("--routing-key", queue, "--body", "{}", "--rate", "5000")
    try:
        call_command("publish", f"--broker={broker.slug}", f"--count={number}", *options)
    finally:
        job = PublishJob.objects.select_related("work").get()
    return job


def attend(own: Work) -> tuple[str, str]:
    """The state and error that an attempt leaves."""
    own.refresh_from_db()
    claimed = work.claim_this(own, "worker")
    assert claimed is not None
    work.attempt(publish_job.attend, claimed, stop=Event())
    claimed.refresh_from_db()
    return claimed.state, claimed.error


def read_all(vhost: Vhost) -> list[Message]:
    found = []
    with getter(address_of(vhost), "work") as source:
        while delivery := source.get():
            found.append(delivery.message)
    return found


def test_a_death_repeats_at_most_the_window_and_marks_it(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = 0, Messages.write

    def die_at_the_tenth(messages: Messages) -> None:
        nonlocal written
        written += 1
        if written > 10:
            raise Death
        write(messages)

    with monkeypatch.context() as patch:
        patch.setattr(Messages, "write", die_at_the_tenth)
        with pytest.raises(Death):
            publish(vhost, 2_000)
    job = PublishJob.objects.select_related("work").get()
    assert job.work.state == WorkState.RUNNING
    assert 0 < len(job.unanswered) <= WINDOW
    assert job.published == job.begun - len(job.unanswered)
    past = timezone.now() - timedelta(seconds=1)
    Work.objects.update(leased_until_at=past)
    assert attend(job.work) == (WorkState.DONE, "")
    job = PublishJob.objects.select_related("work").get()
    arrived = read_all(vhost)
    ids = Counter(message.properties.message_id for message in arrived)
    marked = [message for message in arrived if DOUBLED_HEADER in message.headers]
    assert (job.work.state, job.published, job.returned) == (WorkState.DONE, 2_000, 0)
    assert set(ids) == {f"{job.pk}-{number}" for number in range(1, 2_001)}
    assert 0 < job.repeated == len(marked) <= WINDOW
    repeated = {name for name, times in ids.items() if times > 1}
    assert repeated <= {message.properties.message_id for message in marked}
    assert bytes(job.body) == b""
    ended = AuditEntry.objects.get(action="publish job ended")
    assert ended.details["published"] == 2_000


def test_what_no_queue_takes_is_counted_with_the_reason(vhost: Vhost) -> None:
    with pytest.raises(CommandError, match="no queue"):
        publish(vhost, 3, queue="missing")
    job = PublishJob.objects.get()
    assert (job.published, job.returned) == (0, 3)


def test_what_another_queue_refused_is_counted_as_possibly_published(vhost: Vhost) -> None:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
        management.declare_exchange(Exchange("fan", "fanout"))
        management.bind(Binding("fan", "work", ""))
        refuse_beside(management, "fan", "")
    broker = make_broker(vhost)
    options = ("--count=3", "--rate=9", "--exchange=fan")
    with pytest.raises(SystemExit) as ended:
        call_command("publish", f"--broker={broker.slug}", *options)
    assert ended.value.code == ExitCode.UNKNOWN
    job = PublishJob.objects.get()
    assert (job.work.state, job.unanswered) == (WorkState.DONE, [])
    assert (job.published, job.returned, job.unknown, job.repeated) == (0, 0, 3, 0)
    assert f"{SAID}“work”." in job.returned_why
    assert len(read_all(vhost)) == 3


def test_a_stop_ends_the_job_while_it_publishes(vhost: Vhost, monkeypatch: Any) -> None:
    settle = Messages.settle

    def stop_first(messages: Messages, answers: Any) -> None:
        settle(messages, answers)
        publish_job.stop_job(None, PublishJob.objects.select_related("work").get())

    monkeypatch.setattr(Messages, "settle", stop_first)
    with pytest.raises(CommandError, match="stopped"):
        publish(vhost, 50_000)
    job = PublishJob.objects.select_related("work").get()
    assert job.work.state == WorkState.CANCELLED
    assert job.published == len(read_all(vhost)) == job.begun - len(job.unanswered) < 50_000


def test_each_message_of_a_topology_waits_its_delay(vhost: Vhost) -> None:
    levels = applied_levels(vhost, Params("own", "levels", 3))
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    begun_at = time.monotonic()
    options = ("--target=work", "--delay=1s", "--count=5", "--rate=5000")
    call_command("publish", f"--topology={levels.slug}", *options)
    found: list[Message] = []

    def have_arrived() -> bool:
        found.extend(read_all(vhost))
        return len(found) == 5

    eventually(have_arrived, "all messages arrive")
    assert time.monotonic() - begun_at >= 1
    assert {m.properties.message_id for m in found} == {
        f"{PublishJob.objects.get().pk}-{number}" for number in range(1, 6)
    }


def test_a_broker_error_is_shown_and_tried_again(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(vhost)
    own = work.create(KIND, broker.pk, broker=broker, user=None)
    job = PublishJob.objects.create(broker=broker, work=own, number=1, rate=1, routing_key="work")
    tap = Queue(f"{TAP_PREFIX}orders")
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("orders", "topic"))
        management.declare_queue(tap)
        management.bind(Binding("orders", tap.name, "#"))
    with monkeypatch.context() as patch:
        patch.setattr(Management, "alarms", lambda management: ["memory"])
        assert attend(own) == (WorkState.WAITING, alarm_sentence(["memory"]))
    PublishJob.objects.update(exchange="orders")
    Work.objects.update(not_before_at=None)
    state, error = attend(own)
    assert state == WorkState.FAILED
    assert error.startswith("No queue but a tap of Delayboard receives the message")
    job.refresh_from_db()
    assert (job.begun, job.published) == (0, 0)
