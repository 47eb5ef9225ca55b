from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.replay import send as sending
from delayboard.dead_letters.replay import ways
from tests.builders import make_broker, make_pair, make_user
from tests.delayboard.builders import TAPPED
from tests.topology.builders import a_snapshot
from tests.topology.conftest import cheap_passwords
from topology.definitions import Definitions
from topology.models import Broker, Role, State, Topology

__all__ = ["cheap_passwords"]


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
    monkeypatch.setattr(sending, "observe", lambda management: a_snapshot(seen["now"]))
    monkeypatch.setattr(ways, "look_along", lambda management, known, exchange: seen["now"])
    return seen
