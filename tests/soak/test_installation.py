from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from tests.soak.installation import Installation, SoakError

SAID = """\
Starting the broker

    Sign in as  admin
    password    s3cret-Words

site   | INFO: nothing
worker | The worker runs.
site   | 2026-11-20 09:00:00,000 ERROR delayboard.live.feed: it could not be worked out
worker ended with code 1 and restarts in 1 s
"""


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    (tmp_path / "run.log").write_text(SAID)
    return Installation(tmp_path, tmp_path / "run.log", Event())


def test_the_password_is_the_one_that_was_shown(installation: Installation) -> None:
    assert installation.password == "s3cret-Words"
    installation.log.write_text("nothing")
    with pytest.raises(SoakError, match="password"):
        _ = installation.password


def test_errors_and_ends_are_found_in_the_output_and_nothing_else(
    installation: Installation,
) -> None:
    assert [line.split()[0] for line in installation.warnings()] == ["site", "worker"]


def test_errors_are_counted_in_the_brokers_log(installation: Installation) -> None:
    logs = installation.folder / "broker" / "log"
    assert installation.broker_errors() == 0
    logs.mkdir(parents=True)
    (logs / "delayboard@localhost.log").write_text(
        "2026-11-20 [info] <0.1.0> an error\n2026-11-20 [error] <0.2.0> closing\n"
    )
    assert installation.broker_errors() == 1


def test_stopping_what_was_never_started_does_nothing(installation: Installation) -> None:
    installation.stop()
    assert installation.exit_code is None
