"""A read-only switch refuses each change of a broker where it passes, whoever asks."""

from __future__ import annotations

from threading import Event

import pytest

from tests.builders import make_broker
from topology import work
from topology.broker.amqp.pipeline import pipeline
from topology.broker.management.client import Management
from topology.definitions import Queue
from topology.models import Broker, ReadOnly, SiteSwitch, Work, WorkState
from topology.models.read_only import READ_ONLY, finishing
from topology.models.work import INTERCEPT, NIGHTLY

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]
SENTENCE = "Test broker is read-only. An administrator can end this."


@pytest.fixture
def broker() -> Broker:
    """Nothing listens at its address: what is refused before asks nobody."""
    broker = make_broker()
    Broker.objects.update(is_read_only=True)
    broker.refresh_from_db()
    return broker


def test_each_change_of_a_broker_is_refused_where_it_passes(broker: Broker) -> None:
    with Management(broker.address) as management:
        with pytest.raises(ReadOnly, match=SENTENCE):
            management.declare_queue(Queue("orders"))
        with pytest.raises(ReadOnly, match=SENTENCE):
            management.delete_queue("orders", only_if_empty=True)
    with pytest.raises(ReadOnly, match=SENTENCE), pipeline(broker.address, "test"):
        pass
    with pytest.raises(ReadOnly, match=SENTENCE):
        work.create("replay", 1, broker=broker, user=None)


def test_begun_work_waits_with_the_sentence_and_goes_on_after(broker: Broker) -> None:
    Broker.objects.update(is_read_only=False)
    row = work.create("replay", 1, broker=broker, user=None)
    claimed = work.claim(["replay"], "test")
    assert claimed is not None
    Broker.objects.update(is_read_only=True)
    with pytest.raises(ReadOnly, match=SENTENCE):
        work.lease_of(claimed).pulse(0, 0)
    work.attempt(refuse_to_run, claimed, stop=Event())
    row.refresh_from_db()
    assert (row.state, row.error) == (WorkState.WAITING, SENTENCE)
    Broker.objects.update(is_read_only=False)
    row.not_before_at = None
    row.save()
    claimed = work.claim(["replay"], "test")
    assert claimed is not None
    work.attempt(lambda *_, **__: None, claimed, stop=Event())
    row.refresh_from_db()
    assert row.state == WorkState.DONE


def refuse_to_run(*args: object, **kwargs: object) -> None:
    raise AssertionError("the work was done")


def test_what_holds_messages_on_their_way_comes_to_its_end(broker: Broker) -> None:
    Broker.objects.update(is_read_only=False)
    work.create(INTERCEPT, 1, broker=broker, user=None)
    claimed = work.claim([INTERCEPT], "test")
    assert claimed is not None
    Broker.objects.update(is_read_only=True)
    changed = []

    def change(*args: object, **kwargs: object) -> None:
        broker.address.before_change()
        changed.append(1)

    work.attempt(change, claimed, stop=Event())
    assert changed == [1]
    with pytest.raises(ReadOnly):
        broker.address.before_change()
    with finishing():
        broker.address.before_change()


def test_the_switch_of_the_site_is_for_every_broker() -> None:
    other = make_broker()
    SiteSwitch.objects.create(name=READ_ONLY, username="root")
    with pytest.raises(ReadOnly, match=r"root set Delayboard to read-only at .* UTC. An admin"):
        other.address.before_change()


def test_work_of_no_broker_goes_on() -> None:
    SiteSwitch.objects.create(name=READ_ONLY, username="root")
    with work.alone(NIGHTLY, 1) as lease:
        assert lease is not None
        lease.pulse(1, 2)


def test_what_has_not_begun_is_refused_until_it_is_cancelled(broker: Broker) -> None:
    Broker.objects.update(is_read_only=False)
    row = work.create(INTERCEPT, 1, broker=broker, user=None)
    claimed = work.claim([INTERCEPT], "test")
    assert claimed is not None
    Broker.objects.update(is_read_only=True)

    def begin(claimed: Work, **_: object) -> None:
        work.refuse_beginning(claimed)

    work.attempt(begin, claimed, stop=Event())
    row.refresh_from_db()
    assert (row.state, row.error) == (WorkState.WAITING, SENTENCE)
    row.cancel_requested = True
    begin(row)
