"""Commands end with 0 when asked to; with 1 and one sentence when they cannot do their work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.utils import timezone

from delayboard.models import DeadLetterQueue
from delayboard.models.background_task import REPLAYS, task_key
from tests.builders import make_broker
from tests.faults.processes import environment, started
from tests.faults.test_run import free_port


def ended(*arguments: str, variables: dict[str, str]) -> list[str]:
    """The lines that it wrote before it ended with 1."""
    with started(*arguments, variables=variables) as process:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 1
    return said.decode().strip().splitlines()


def test_running_with_an_address_that_is_none(tmp_path: Path) -> None:
    variables = {**os.environ, "DELAYBOARD_VAR": str(tmp_path)}
    variables.pop("DATABASE_URL", None)
    given = ["--broker", "http://127.0.0.1", "--management", "http://127.0.0.1:9"]
    said = ended("run", "--port", str(free_port()), *given, variables=variables)
    assert "must look like amqp://user:password@host/vhost" in said[-1]
    assert "Traceback" not in "".join(said)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["park", "replay"])
def test_what_is_asked_to_end_ends_with_0(kind: str) -> None:
    row = DeadLetterQueue.objects.create(
        broker=make_broker(),
        queue="dead",
        is_confirmed=True,
        decided_at=timezone.now(),
        parks_automatically=True,
    )
    task = task_key("park", row.pk) if kind == "park" else REPLAYS
    with started("worker", "--only", task, variables=environment()) as process:
        assert process.stdout is not None
        assert b"runs." in process.stdout.readline()
        process.terminate()
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert b"has ended." in said


@pytest.mark.django_db(transaction=True)
def test_demo_traffic_without_a_demo_broker() -> None:
    (said,) = ended("run_demo_traffic", variables=environment())
    assert "There is no broker named “Demo broker”" in said
