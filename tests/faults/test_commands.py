"""A command that cannot do its work ends with 1 and one sentence, never with a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.processes import environment, started
from tests.faults.test_run import free_port


def ended(*arguments: str, variables: dict[str, str]) -> list[str]:
    """The lines that it wrote before it ended with 1."""
    with started(*arguments, variables=variables) as process:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 1
    return said.decode().strip().splitlines()


@pytest.mark.parametrize(
    ("broker", "sentence"),
    [
        ("http://127.0.0.1", "must look like amqp://user:password@host/vhost"),
        ("amqp://a:b@127.0.0.1:99999/v", "The port in the broker's address is no number"),
    ],
)
def test_running_with_an_address_that_is_none(tmp_path: Path, broker: str, sentence: str) -> None:
    variables = {**os.environ, "DELAYBOARD_VAR": str(tmp_path)}
    variables.pop("DATABASE_URL", None)
    given = ["--broker", broker, "--management", "http://127.0.0.1:9"]
    said = ended("run", "--port", str(free_port()), *given, variables=variables)
    assert sentence in said[-1]
    assert "Traceback" not in "".join(said)


@pytest.mark.django_db(transaction=True)
def test_demo_traffic_without_a_demo_broker() -> None:
    (said,) = ended("run_demo_traffic", variables=environment())
    assert "There is no broker named “Demo broker”" in said
