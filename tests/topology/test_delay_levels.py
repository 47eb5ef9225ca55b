"""Delay levels against the objects and keys that NServiceBus and Celery are known to use."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.patterns.delay_levels import pattern as delay_levels_pattern
from topology.patterns.delay_levels.params import Params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.pattern import ParamsError
from topology.structure.copies import Copy, Reading

MAXIMUM = 2**28 - 1
V1, V2, CELERY = Params("nsb-v1"), Params("nsb-v2"), Params("celery")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


# NServiceBus.RabbitMQ, When_calculating_a_routing_key.cs.
VECTORS = [
    (0, "some-address", "0." * 28 + "some-address", 0),
    (0, "", "0." * 28, 0),
    (0, "exotic-😊-address", "0." * 28 + "exotic-😊-address", 0),
    (1, "some-address", "0." * 27 + "1.some-address", 0),
    (2, "some-address", "0." * 26 + "1.0.some-address", 1),
    (3, "🔥-unicode", "0." * 26 + "1.1.🔥-unicode", 1),
    (10, "some-address", "0." * 24 + "1.0.1.0.some-address", 3),
    (15, "small-delay", "0." * 24 + "1.1.1.1.small-delay", 3),
    (28, "short-delay", "0." * 23 + "1.1.1.0.0.short-delay", 4),
    (268435454, "almost-max", "1." * 27 + "0.almost-max", 27),
    (268435455, "some-address", "1." * 28 + "some-address", 27),
    (-123, "some-address", "0." * 28 + "some-address", 0),
]


@pytest.mark.parametrize(("delay", "address", "key", "level"), VECTORS)
def test_keys_and_first_levels_are_those_of_nservicebus(
    delay: int, address: str, key: str, level: int
) -> None:
    route = delay_levels.route(V2, seconds(delay), address)
    assert (route.routing_key, route.exchange) == (key, f"nsb.v2.delay-level-{level:02}")


@given(st.integers(0, MAXIMUM), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_delay_is_spelt_in_its_bits_and_enters_at_the_highest(delay: int, address: str) -> None:
    route = delay_levels.route(V2, seconds(delay), address)
    bits = route.routing_key[:56:2]
    assert set(route.routing_key[1:56:2]) == {"."}
    assert route.routing_key[56:] == address
    assert sum(2 ** (27 - place) for place, bit in enumerate(bits) if bit == "1") == delay
    level = int(route.exchange.removeprefix("nsb.v2.delay-level-"))
    assert (2**level <= delay < 2 ** (level + 1)) if delay else level == 0


def test_a_delay_over_the_maximum_is_refused() -> None:
    assert delay_levels.achievable(V2, seconds(MAXIMUM)) == seconds(MAXIMUM)
    with pytest.raises(
        ParamsError, match="The longest delay of this topology is 8y 186d 21h 24m 15s"
    ):
        delay_levels.route(V2, seconds(MAXIMUM + 0.001), "orders")


@pytest.mark.parametrize(("delay", "level"), [(0, 0), (1, 27), (5, 27), (MAXIMUM, 27)])
def test_celery_enters_at_its_highest_level_whatever_the_delay(delay: int, level: int) -> None:
    assert delay_levels.route(CELERY, seconds(delay), "q").exchange == f"celery_delayed_{level}"


def test_a_part_of_a_step_is_rounded_up() -> None:
    assert delay_levels.achievable(V2, seconds(1.001)) == seconds(2)
    own = Params("own", "shop", 8, timedelta(milliseconds=50))
    assert delay_levels.achievable(own, timedelta(milliseconds=51)) == timedelta(milliseconds=100)
    assert own.maximum == timedelta(milliseconds=12_750)


def test_a_destination_that_makes_the_key_too_long_is_refused() -> None:
    assert delay_levels.route(V2, seconds(1), "a" * 199).routing_key.endswith("a")
    with pytest.raises(ParamsError, match="at most 199 bytes"):
        delay_levels.route(V2, seconds(1), "a" * 200)


@pytest.mark.parametrize(
    ("params", "name", "delivery", "extra"),
    [
        (V1, "nsb.delay-level-{:02}", "nsb.delay-delivery", {"x-queue-mode": "lazy"}),
        (
            V2,
            "nsb.v2.delay-level-{:02}",
            "nsb.v2.delay-delivery",
            {
                "x-queue-type": "quorum",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        ),
        (
            CELERY,
            "celery_delayed_{}",
            "celery_delayed_delivery",
            {
                "x-queue-type": "quorum",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        ),
        (
            Params("celery", "shop", queue_type="classic"),
            "shop_celery_delayed_{}",
            "shop_celery_delayed_delivery",
            {"x-queue-type": "classic", "x-overflow": "reject-publish"},
        ),
    ],
)
def test_what_a_preset_declares_is_what_its_owner_declares(
    params: Params, name: str, delivery: str, extra: dict[str, str]
) -> None:
    """DelayInfrastructure.cs of NServiceBus.RabbitMQ 6 and 11, native_delayed_delivery.py of
    kombu 5.5."""
    declared = delay_levels.definitions(params)
    assert (len(declared.exchanges), len(declared.queues), len(declared.bindings)) == (29, 28, 56)
    assert all(e.durable and e.type == "topic" and not e.auto_delete for e in declared.exchanges)
    for level in range(28):
        queue = declared.queue(name.format(level))
        assert queue is not None
        assert queue.durable
        below = name.format(level - 1) if level else delivery
        assert dict(queue.arguments) == {
            "x-message-ttl": 2**level * 1000,
            "x-dead-letter-exchange": below,
            **extra,
        }
        wild = "*." * (27 - level)
        assert Binding(queue.name, queue.name, f"{wild}1.#") in declared.bindings
        assert Binding(queue.name, below, f"{wild}0.#", False) in declared.bindings


def test_a_destination_is_bound_by_its_name_behind_any_bits() -> None:
    (bound,) = delay_levels.route(V2, seconds(1), "retail.sales").declares.bindings
    assert bound == Binding("nsb.v2.delay-delivery", "retail.sales", "#.retail.sales")
    to_exchange = Params("nsb-v2", destinations="exchanges")
    (bound,) = delay_levels.route(to_exchange, seconds(1), "sales").declares.bindings
    assert bound == Binding("nsb.v2.delay-delivery", "sales", "#.sales", False)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("", "The destination is missing. Enter a queue or an exchange."),
        ("a.*", "the word “*” or “#”"),
        ("#", "the word “*” or “#”"),
        ("sales", "The destination “retail.sales” ends with this name"),
        ("north.retail.sales", "This destination ends with “retail.sales”"),
        ("retail.sales", ""),
        ("wholesales", ""),
        ("purchases", ""),
    ],
)
def test_destinations_that_would_share_their_messages_are_told(target: str, sentence: str) -> None:
    bound = delay_levels.route(V2, seconds(1), "retail.sales").declares
    found = delay_levels.definitions(V2) | bound
    problem = delay_levels.target_problem(V2, target, found)
    assert sentence in problem
    assert bool(problem) == bool(sentence)


def test_what_others_bound_to_the_delivery_exchange_is_a_destination_and_a_tap_is_not() -> None:
    delivery = "nsb.v2.delay-delivery"
    theirs = Binding(delivery, "sales", "#.sales", False)
    tap = Binding(delivery, "delayboard.tap.x", "#")
    found = delay_levels.definitions(V2) | Definitions.of([theirs, tap, Exchange("sales")])
    assert list(delay_levels.destinations(V2, found)) == [theirs]


def test_an_at_least_once_set_has_no_tap_where_it_delivers_and_says_so() -> None:
    assert {tap.phase for tap in delay_levels.taps(V2)} == {"entry"}
    assert "not observed" in " ".join(delay_levels.remarks(V2, delay_levels.definitions(V2)))
    assert {tap.phase for tap in delay_levels.taps(V1)} == {"entry", "exit"}
    assert delay_levels.remarks(V1, delay_levels.definitions(V1)) == []


def test_an_exit_tap_behind_a_destination_is_a_choice_with_its_hazard() -> None:
    chosen = Params("nsb-v2", destinations="exchanges", exit_taps=("sales", "audit"))
    assert delay_levels.parse(delay_levels.store(chosen)) == chosen
    exits = [tap for tap in delay_levels.taps(chosen) if tap.phase == "exit"]
    assert [(tap.exchange, tap.routing_key, tap.destination) for tap in exits] == [
        ("audit", "#", "audit"),
        ("sales", "#", "sales"),
    ]
    found = delay_levels.definitions(chosen) | Definitions.of(
        [
            Exchange("sales", "fanout"),
            Binding("sales", "delayboard.tap.x", "#"),
            Exchange("audit", "direct"),
        ]
    )
    remarks = " ".join(delay_levels.remarks(chosen, found))
    assert "No queue is bound to the exchange “sales”. Its exit tap alone takes" in remarks
    assert "“audit” is a direct exchange" in remarks
    assert "Deliveries are not observed except to audit, sales." in remarks
    found |= Definitions.of([Binding("sales", "sales", "")])
    assert "No queue is bound" not in " ".join(delay_levels.remarks(chosen, found))


@pytest.mark.parametrize(
    "stated", [{"destinations": "queues"}, {"preset": "nsb-v1", "destinations": "exchanges"}]
)
def test_exit_taps_are_refused_where_they_have_no_use(stated: dict[str, str]) -> None:
    with pytest.raises(ParamsError) as caught:
        delay_levels.parse({"exit_taps": "sales", **stated})
    assert "need quorum queues and exchanges as destinations" in caught.value.problems["exit_taps"]


def test_destinations_that_share_their_messages_are_both_remarked_on() -> None:
    found = delay_levels.definitions(V1)
    for target in ("sales", "retail.sales", "orders"):
        found |= delay_levels.route(V1, seconds(1), target).declares
    assert [remark.split(", so ")[0] for remark in delay_levels.remarks(V1, found)] == [
        "Destination “retail.sales”: This destination ends with “sales”",
        "Destination “sales”: The destination “retail.sales” ends with this name",
    ]


@pytest.mark.parametrize(
    "key", ["", "orders", "1.0.orders", "2." * 28 + "orders", "1." * 27 + "orders", "1" * 56 + "x"]
)
def test_a_key_that_spells_no_delay_is_none_of_the_levels(key: str) -> None:
    for exchange in ("nsb.v2.delay-level-00", "nsb.v2.delay-delivery"):
        assert delay_levels.read(V2, Copy(exchange, key, {})) is None


def test_a_message_enters_at_its_highest_level_and_leaves_below_its_lowest() -> None:
    ten = seconds(10)
    key, none = (
        delay_levels_pattern.routing_key(V2, delay, "orders") for delay in (ten, seconds(0))
    )
    died = {"x-last-death-queue": "nsb.v2.delay-level-01", "x-last-death-reason": "expired"}
    assert [
        delay_levels.read(V2, Copy(f"nsb.v2.delay-{name}", key, died))
        for name, key in (
            ("level-03", key),
            ("level-01", key),
            ("level-00", key),
            ("delivery", key),
            ("delivery", none),
            ("level-00", none),
        )
    ] == [
        Reading("entry", "orders", "nsb.v2.delay-level-03", ten, 1, *died.values()),
        None,
        Reading("exit", "orders", "orders", ten, 1, *died.values()),
        Reading("exit", "orders", "orders", ten, 1, *died.values()),
        Reading("publish", "orders", "orders", seconds(0), 0, *died.values()),
        Reading("publish", "orders", "orders", seconds(0), 0, *died.values()),
    ]
    assert delay_levels.read(V2, Copy("elsewhere", none, {})) is None


def test_a_chain_with_a_wrong_rung_is_recognised_with_what_is_missing() -> None:
    declared = delay_levels.definitions(V2)
    for obj in declared:
        (use,) = delay_levels.recognize(declared.without([obj.identity]))
        assert use.params == V2
        assert use.claims == {other.identity for other in declared} - {obj.identity}
        (missing,) = use.missing
        assert missing.endswith(" is missing.")


def test_a_chain_with_a_wrong_ttl_is_recognised_and_told_from_a_whole_one() -> None:
    declared = delay_levels.definitions(V2)
    name = "nsb.v2.delay-level-05"
    level = declared.queue(name)
    assert level is not None
    odd = Queue(name, arguments=Arguments({**level.arguments, "x-message-ttl": 1}))
    (use,) = delay_levels.recognize(declared.without([level.identity]) | Definitions.of([odd]))
    assert (use.params, use.missing) == (V2, (f"The queue “{name}” differs from the pattern.",))


def test_levels_of_which_none_is_complete_are_found_while_half_of_them_is_there() -> None:
    params = Params("own", "shop", 4)
    declared = delay_levels.definitions(params)
    passing = [one.identity for one in declared.bindings if not one.destination_is_queue]
    (use,) = delay_levels.recognize(declared.without(passing))
    assert use.params == params
    assert len(use.missing) == len(passing)


def test_less_than_half_of_a_chain_is_none() -> None:
    kept = [t for t in delay_levels.definitions(V2) if "-level-0" not in str(t.identity)]
    top = [t for t in kept if not isinstance(t, Binding)][:40]
    assert list(delay_levels.recognize(Definitions.of(top))) == []
    few = [t for t in kept if "-level-27" in str(t.identity)]
    assert list(delay_levels.recognize(Definitions.of(few))) == []
