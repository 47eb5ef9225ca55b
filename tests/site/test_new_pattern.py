"""A pattern that only its own module and a line of the table know works on every page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from string import Template
from typing import Any

import pytest
from django.urls import reverse
from hypothesis import strategies as st

from delayboard.changes.check import Unchangeable, exit_of
from delayboard.dead_letters.replay.observers import _read_topology_rounds
from tests.delayboard.test_retrying import waits
from tests.site.page_setup import know, signed_in, text_of
from tests.topology import test_patterns as laws
from tests.topology.pattern_cases import CASES
from tests.topology.pattern_cases.case import Case, delays, names
from topology.definitions import Arguments, Definitions, Queue
from topology.delays import milliseconds
from topology.message import Route
from topology.models import Broker, Role, State, Topology
from topology.patterns.pattern import Explanation, Field, Pattern
from topology.patterns.table import PATTERNS
from topology.patterns.texts import refuse, text_functions
from topology.provisioning import recognition
from topology.structure.copies import Copy, Reading

KIND, END = "wait_queue", ".wait-queue"
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Params:
    name: str
    delay: timedelta = MINUTE

    def __post_init__(self) -> None:
        refuse({"name": "" if self.name else "The name is missing."})


parse, store = text_functions(Params)


def definitions(params: Params) -> Definitions:
    arguments: dict[str, str | int] = {
        "x-message-ttl": milliseconds(params.delay),
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": params.name,
    }
    return Definitions.of([Queue(params.name + END, arguments=Arguments(arguments))])


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    for queue in queues:
        name = queue.name.removesuffix(END)
        if name not in ("", queue.name) and queue.dead_letter_routing_key == name:
            yield {"name": name, "delay": queue.message_ttl}


class WaitQueue(Pattern):
    KIND = KIND
    FIELDS = (Field("name", "Name", "The work queue."), Field("delay", "Delay", "5m", initial="5m"))
    EXPLANATION = Explanation(
        "Wait queue", "One queue.", "A TTL.", "None.", "None.", ("None.",), "A test."
    )
    CODE = Template("channel.basic_get($queue)")
    EXAMPLE = Params("orders")
    ATTEMPTS_COUNTED_BY = "x-death"
    parse = staticmethod(parse)
    store = staticmethod(store)
    definitions = staticmethod(definitions)
    derive = staticmethod(derive)

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        return Route("", params.name + END if delay > timedelta(0) else params.name)

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return params.delay if delay > timedelta(0) else timedelta(0)

    def delays(self, params: Params) -> Sequence[timedelta]:
        return (params.delay,)

    def targets(self, params: Params) -> Sequence[str]:
        return (params.name,)

    def read(self, params: Params, copy: Copy) -> Reading | None:
        if copy.routing_key != params.name + END:
            return None
        return Reading("entry", params.name, copy.routing_key, params.delay, 1)

    def code_values(self, params: Params) -> Mapping[str, str]:
        return {"queue": params.name}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(
        st.builds(Params, names.filter(lambda name: len(name.encode()) < 200), delays),
        (({}, "name", "The name is missing."),),
        beside=lambda params: Definitions.of([Queue(params.name)]),
    )
    monkeypatch.setitem(CASES, KIND, case)
    monkeypatch.setitem(PATTERNS, KIND, WaitQueue())
    recognition._structure.cache_clear()


LAWS = [
    law
    for name, law in vars(laws).items()
    if name.startswith("test_")
    and law.__code__.co_varnames[: law.__code__.co_argcount] == ("kind",)
]


@pytest.mark.parametrize("law", LAWS)
def test_the_laws_are_run_over_it(law: Callable[[str], None]) -> None:
    law(KIND)


@pytest.mark.django_db
def test_it_is_offered_explained_added_found_and_its_messages_listed(broker: Broker) -> None:
    client = signed_in(Role.OPERATOR)
    assert "Wait queue" in text_of(client.get(reverse("topology:patterns")))
    assert "One queue." in text_of(client.get(reverse("topology:explain", args=[KIND])))
    address = reverse("topology:topology_add") + f"?kind={KIND}&broker={broker.slug}"
    typed = {"broker": broker.slug, "name": "orders", "delay": "5m"}
    assert client.post(address, typed).status_code == 302
    topology = Topology.objects.get(kind=KIND)
    know(broker, Queue("orders"), *topology.pattern.definitions(topology.parsed))
    assert "Wait queue" in text_of(client.get(reverse("topology:discovered", args=[broker.slug])))
    topology.state, topology.applied_at = State.APPLIED, datetime.now(UTC)
    topology.save()
    waits(topology, 86_400, attempt=2, message_id="4711")
    assert "4711" in text_of(client.get(reverse("retrying", args=[broker.slug])))
    for tab in ("topology", "definition", "code", "settings"):
        page = reverse("topology:topology", args=[topology.slug])
        page += "" if tab == "topology" else f"{tab}/"
        assert client.get(page).status_code == 200
    assert _read_topology_rounds(broker) == {"orders": 5 * MINUTE}


def test_its_single_messages_are_not_changed_until_it_says_how() -> None:
    with pytest.raises(Unchangeable, match="cannot change single messages"):
        exit_of(WaitQueue(), WaitQueue.EXAMPLE, "orders")
