from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.replay import batch_items, make_draft
from tests.builders import make_broker, make_pair, make_user
from tests.delayboard.builders import TAPPED
from tests.delayboard.pipes import Pipes, opened
from tests.delayboard.preparing import known
from tests.topology.builders import a_snapshot
from topology import snapshots
from topology.definitions import Definitions
from topology.models import Broker, Role, State, Topology
from topology.operations import answers


@pytest.fixture
def broker(db: None) -> Broker:
    return make_broker()


@pytest.fixture
def user(broker: Broker) -> User:
    return make_user("ann", Role.OPERATOR, broker)


@pytest.fixture
def pair(broker: Broker) -> Topology:
    topology = make_pair(broker, delay="5s")
    topology.state = State.APPLIED
    topology.save()
    return topology


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> dict[str, Definitions]:
    """What the broker holds when a replay looks; tests may change it."""
    seen = {"now": TAPPED}
    monkeypatch.setattr(
        snapshots, "for_action", lambda broker, management, objects: a_snapshot(seen["now"])
    )
    monkeypatch.setattr(answers, "refresh_route", lambda management, known, exchange: seen["now"])
    return seen


@pytest.fixture
def seen(broker: Broker) -> Iterator[None]:
    """The broker is known without being asked."""
    with known(broker):
        yield


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than two messages are much, and are done two at a time."""
    monkeypatch.setattr(make_draft, "AT_ONCE", 2)
    monkeypatch.setattr(make_draft, "AT_ONCE", 2)
    monkeypatch.setattr(make_draft, "CHUNK", 2)
    monkeypatch.setattr(batch_items, "SLICE", 3)


@pytest.fixture
def pipes(there: dict[str, Definitions], monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipes]:
    with opened(Pipes(), monkeypatch) as found:
        yield found
