"""Killing the worker in each step of a replacement: the next one goes on, and loses nothing."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Event

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, newest_generation
from tests.builders import eventually
from tests.faults.forking import forked
from tests.faults.freezing import frozen
from tests.real_broker.replacing import (
    assert_as_defined,
    assert_none_lost_doubled_or_hurried,
    make_drifted,
    traffic,
)
from topology.models import QueueReplacement, ReplacementStep, Work, WorkState
from topology.operations import replace_queue

pytestmark = [pytest.mark.django_db(transaction=True), newest_generation]

STOPPED_SECONDS = 3.0


def test_a_worker_that_is_killed_in_each_step_loses_hurries_and_doubles_nothing(
    vhost: Vhost,
) -> None:
    drifted = make_drifted(vhost, "quorum")
    killed = set[str]()
    with traffic(drifted) as seen:
        eventually(lambda: len(seen.arrived) > 20, "traffic")
        replace_queue.request(None, drifted.topology)
        while Work.objects.get(kind=replace_queue.KIND).state != WorkState.DONE:
            with forked("worker"):
                eventually(lambda: is_elsewhere(killed), "a step that nobody was killed in")
            killed.add(QueueReplacement.objects.get().step)
            # As after twenty seconds.
            Work.objects.update(leased_until_at=None)
            Work.objects.exclude(state=WorkState.DONE).update(state=WorkState.WAITING)
    assert {ReplacementStep.DRAINING, ReplacementStep.SETTLING} <= killed
    assert_none_lost_doubled_or_hurried(drifted, seen)
    assert_as_defined(drifted)


@pytest.mark.long
def test_a_worker_that_is_killed_while_the_broker_is_stopped_loses_nothing_either(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """The broker answers nothing for three seconds in each step."""
    drifted = make_drifted(vhost, "quorum")
    killed = set[str]()
    with traffic(drifted) as seen:
        eventually(lambda: len(seen.arrived) > 20, "traffic")
        replace_queue.request(None, drifted.topology)
        while Work.objects.get(kind=replace_queue.KIND).state != WorkState.DONE:
            with ExitStack() as stopped:
                with forked("worker"):
                    eventually(lambda: is_elsewhere(killed), "a step that nobody was killed in")
                    stopped.enter_context(frozen(broker_node))
                    killed.add(QueueReplacement.objects.get().step)
                    Event().wait(STOPPED_SECONDS / 2)
                Event().wait(STOPPED_SECONDS / 2)
            Work.objects.update(leased_until_at=None)
            Work.objects.exclude(state=WorkState.DONE).update(state=WorkState.WAITING)
    assert {ReplacementStep.DRAINING, ReplacementStep.SETTLING} <= killed
    assert_none_lost_doubled_or_hurried(drifted, seen)
    assert_as_defined(drifted)


def is_elsewhere(killed: set[str]) -> bool:
    is_done = Work.objects.get(kind=replace_queue.KIND).state == WorkState.DONE
    return is_done or QueueReplacement.objects.get().step not in killed
