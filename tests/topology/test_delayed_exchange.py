from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_snapshot
from topology.definitions import DELAYED_TYPE, Arguments, Binding, Definitions, Exchange, Queue
from topology.patterns.delayed_exchange import pattern as delayed_exchange_pattern
from topology.patterns.delayed_exchange.params import Params
from topology.patterns.delayed_exchange.pattern import delayed_exchange
from topology.patterns.pattern import ParamsError
from topology.patterns.table import PATTERNS
from topology.provisioning.plan import conflict_sentences, make_plan
from topology.provisioning.verify import verify
from topology.structure.copies import Copy, Reading
from topology.structure.taps import tap_definitions
from topology.views.diagram import draw_example

SECOND = timedelta(seconds=1)
NONE = timedelta(0)
MASS = "MT-Redelivery-Count"
LATER = Params("later", "direct", (("k", "work"), ("other", "other")))
OWN = delayed_exchange.definitions(LATER)
QUEUES = Definitions.of([Queue("work"), Queue("other")])


def exchange(kind: str = "direct", **changes: Any) -> Exchange:
    stated = Arguments({"x-delayed-type": kind})
    return Exchange("later", DELAYED_TYPE, arguments=stated, **changes)


def test_it_is_declared_as_the_readme_of_the_plugin_says() -> None:
    objects = [exchange(), Binding("later", "work", "k"), Binding("later", "other", "other")]
    assert set(OWN) == set(objects)


@pytest.mark.parametrize("version", [(3, 13, 7), (4, 2, 0), (4, 3, 0), ()])
def test_no_broker_gets_one_and_what_replaces_it_is_said(version: tuple[int, ...]) -> None:
    obstacle = delayed_exchange.obstacle(version)
    assert obstacle.startswith("Delayboard does not create exchanges of the delayed-message plugin")
    assert "archived in January 2026" in obstacle
    assert "does not run on RabbitMQ 4.3" in obstacle
    assert "Use delay levels instead" in obstacle
    assert "hold queues" in obstacle


@pytest.mark.parametrize(
    ("delay", "headers"),
    [
        (NONE, {}),
        (-SECOND, {}),
        (SECOND, {"x-delay": 1000}),
        (timedelta(microseconds=1500), {"x-delay": 2}),
        (delayed_exchange_pattern.LONGEST, {"x-delay": 4_294_967_295}),
    ],
)
def test_the_header_carries_the_delay(delay: timedelta, headers: dict[str, int]) -> None:
    route = delayed_exchange.route(LATER, delay, "k")
    assert (route.exchange, route.routing_key, route.headers) == ("later", "k", headers)
    assert not len(route.declares)


def test_a_delay_that_the_plugin_would_not_keep_is_refused() -> None:
    with pytest.raises(
        ParamsError, match=r"The longest delay of the plugin is 49d 17h 2m 47\.295s"
    ):
        delayed_exchange.route(LATER, delayed_exchange_pattern.LONGEST + SECOND / 1000, "k")


def test_delayboard_does_not_publish_where_it_could_not_tell_what_became_of_it() -> None:
    problem = delayed_exchange.target_problem(LATER, "k", OWN | QUEUES)
    assert "returns mandatory messages although it stores them" in problem
    assert "mandatory=False" in delayed_exchange.consumer_example(LATER)
    assert any("mandatory" in hazard for hazard in delayed_exchange.EXPLANATION.hazards)


@pytest.mark.parametrize(
    ("exchange_name", "key", "headers", "reading"),
    [
        ("later", "k", {"x-delay": 1000}, Reading("entry", "k", "", SECOND, 1)),
        ("later", "k", {"x-delay": -1000}, Reading("exit", "k", "work", SECOND, 1)),
        ("later", "gone", {"x-delay": -1000}, Reading("exit", "gone", "", SECOND, 1)),
        ("later", "k", {}, Reading("publish", "k", "work", NONE, 0)),
        ("later", "k", {"x-delay": 2**32}, Reading("publish", "k", "work", NONE, 0)),
        ("later", "k", {"x-delay": True}, Reading("publish", "k", "work", NONE, 0)),
        ("later", "k", {"x-delay": "soon"}, Reading("publish", "k", "work", NONE, 0)),
        ("", "work", {"x-delay": -1000}, None),
        # MassTransit counts what the plugin does not.
        ("later", "k", {"x-delay": 1000, MASS: 2}, Reading("entry", "k", "", SECOND, 2)),
        ("later", "k", {"x-delay": -1000, MASS: 2}, Reading("exit", "k", "work", SECOND, 2)),
    ],
)
def test_the_header_tells_whether_a_copy_goes_in_or_came_out(
    exchange_name: str, key: str, headers: dict[str, Any], reading: Reading | None
) -> None:
    assert delayed_exchange.read(LATER, Copy(exchange_name, key, headers)) == reading


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("orders", (("orders", "orders"),)),
        ("k=orders  paid", (("k", "orders"), ("paid", "paid"))),
        ("=orders", (("", "orders"),)),
        ("k=a=b", (("k", "a=b"),)),
        ('[["a key", "a queue"], ["", "[q"]]', (("", "[q"), ("a key", "a queue"))),
    ],
)
def test_queues_are_read_with_their_keys_and_written_as_they_were(
    text: str, bound: tuple[tuple[str, str], ...]
) -> None:
    params = delayed_exchange.parse({"name": "later", "queues": text})
    assert params == Params("later", "direct", bound)
    assert delayed_exchange.parse(delayed_exchange.store(params)) == params


def test_a_missing_queue_is_a_conflict_of_the_plan() -> None:
    plan = make_plan(OWN, a_snapshot(Definitions.of([Queue("work")])))
    (sentence,) = conflict_sentences(plan)
    assert sentence.startswith(
        "The queue other does not exist, so Delayboard cannot create the binding"
    )


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_it_verifies_where_it_stands(kind: str) -> None:
    params = Params("later", kind, (("a.*", "work"), ("b", "other"), ("b", "work")))
    wanted = delayed_exchange.definitions(params)
    verdict = verify(PATTERNS[delayed_exchange.KIND], params, wanted, a_snapshot(wanted | QUEUES))
    assert verdict.holds
    assert [check.sentence for check in verdict.checks] == [
        "A probe would arrive in work after 1m.",
        "A probe would arrive in other after 1m.",
    ]


def test_patterns_leave_the_key_free() -> None:
    bound = (("a.*", "work"), ("b", "other"))
    assert delayed_exchange.targets(Params("later", "topic", bound)) == ()
    assert delayed_exchange.targets(Params("later", "direct", bound)) == ("a.*", "b")


def test_a_foreign_one_is_found_with_its_bindings_and_without_our_tap() -> None:
    tap = tap_definitions("delayboard.tap.later", delayed_exchange.taps(LATER), "classic")
    (use,) = delayed_exchange.recognize(OWN | QUEUES | tap)
    assert (use.name, use.params, use.missing) == ("later", LATER, ())
    assert use.claims == {obj.identity for obj in OWN}


def test_no_other_pattern_takes_one_for_its_own() -> None:
    found = OWN | QUEUES
    kinds = [use.kind for pattern in PATTERNS.values() for use in pattern.recognize(found)]
    assert kinds == [delayed_exchange.KIND]


@pytest.mark.parametrize(
    ("objects", "missing"),
    [
        ([exchange("headers"), Binding("later", "work", "")], ()),
        ([exchange("x-random"), Binding("later", "work", "")], ()),
        ([exchange(), Binding("later", "x", "k", destination_is_queue=False)], ()),
        (
            [exchange()],
            ("The exchange has no bindings, so RabbitMQ drops messages after their delay.",),
        ),
        ([Exchange("later", DELAYED_TYPE), Binding("later", "work", "k")], ()),
    ],
)
def test_one_that_no_parameters_rebuild_is_shown_all_the_same(
    objects: list[Any], missing: tuple[str, ...]
) -> None:
    (use,) = delayed_exchange.recognize(Definitions.of(objects))
    assert (use.params, use.missing) == (None, missing)
    assert use.claims == {obj.identity for obj in objects}


def test_one_that_was_declared_otherwise_says_so() -> None:
    found = Definitions.of([exchange(durable=False), Binding("later", "work", "k")])
    (use,) = delayed_exchange.recognize(found)
    assert use.params == Params("later", "direct", (("k", "work"),))
    assert use.missing == ("The exchange “later” differs from the pattern.",)


def test_an_alternate_exchange_is_remarked_on() -> None:
    stated = Arguments({"x-delayed-type": "direct", "alternate-exchange": "rest"})
    found = Definitions.of([Exchange("later", DELAYED_TYPE, arguments=stated)])
    assert any("“rest” receives a copy" in said for said in delayed_exchange.remarks(LATER, found))
    assert not any("a copy" in said for said in delayed_exchange.remarks(LATER, OWN))


def test_its_explanation_has_a_picture_with_the_exchange_and_the_queue() -> None:
    (fact,) = draw_example("delayed_exchange").facts
    assert (fact.source, fact.key) == ("exchange reminders", "orders")
    assert fact.target.startswith("queue orders")
