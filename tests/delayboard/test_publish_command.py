"""The exit codes of `manage.py publish` when the broker's answer is missing or a refusal."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delayboard.management.commands import publish
from delayboard.models import Publication
from delayboard.models.publication import Sent
from delayboard.publishing.track import Track
from tests.site.page_setup import know
from tests.topology.builders import a_queue
from topology.models import Broker

pytestmark = pytest.mark.django_db


@pytest.fixture
def outcome(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Publication:
    """The row that a publish leaves."""
    know(broker, a_queue("work"))
    row = Publication.objects.create(broker=broker, size=1, error="It broke.")
    monkeypatch.setattr(publish, "send", lambda *_: row)
    return row


def published(broker: Broker, *arguments: str) -> tuple[list[str], Any]:
    out = StringIO()
    code: Any = 0
    try:
        call = ("publish", f"--broker={broker.slug}", "--routing-key=work", "--json", *arguments)
        call_command(*call, stdout=out)
    except SystemExit as ended:
        code = ended.code
    return [json.loads(line)["state"] for line in out.getvalue().splitlines()], code


def test_what_is_possibly_published_is_waited_for(
    broker: Broker, outcome: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome.sent = Sent.UNKNOWN
    assert published(broker) == (["predicted", "unknown"], 4)
    states, code = published(broker, "--wait=0")
    assert (states[:2], len(states), code) == (["predicted", "unknown"], 3, 4)
    arrived = Track("arrived", "It arrived.", is_settled=True)
    monkeypatch.setattr(publish, "wait_for", lambda *_: arrived)
    assert published(broker, "--wait=1") == (["predicted", "unknown", "arrived"], 0)


def test_what_the_broker_refused_is_an_error(broker: Broker, outcome: Publication) -> None:
    outcome.sent = Sent.REFUSED
    with pytest.raises(CommandError, match=r"The message is not published\. It broke\."):
        published(broker)
