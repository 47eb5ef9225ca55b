"""Each rule by its own examples, and the classic mistakes among healthy queues."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.topology.findings.examples import EXAMPLES
from tests.topology.findings.examples.example import (
    Example,
    binding,
    exchange,
    policy,
    queue,
)
from topology.broker.management.definitions_file import read_export
from topology.definitions import Arguments, Binding
from topology.exports.resources import Raw
from topology.findings.find import LIVE_RULES, RULES, find
from topology.findings.finding import Finding, Rule
from topology.findings.hit import Admin, Severity
from topology.snapshot import QueueNumbers

BY_ID = {rule.id: rule for rule in (*RULES, *LIVE_RULES)}


def findings_of(example: Example, *rules: Rule) -> tuple[Finding, ...]:
    (snapshot,) = read_export(example.definitions()).values()
    earlier_at = snapshot.taken_at - timedelta(minutes=1)
    snapshot = replace(
        snapshot,
        numbers=example.numbers,
        earlier=example.earlier,
        earlier_at=earlier_at,
        reports=example.reports,
    )
    return find(snapshot, rules or RULES)


@pytest.mark.parametrize(("rules", "letter"), [(RULES, "F"), (LIVE_RULES, "L")])
def test_rules_are_listed_in_the_order_of_their_severity(
    rules: tuple[Rule, ...], letter: str
) -> None:
    """A number lasts: baselines and mutes have it."""
    numbers = sorted(rule.id for rule in rules)
    assert numbers == [f"{letter}{n:02}" for n in range(1, len(rules) + 1)]
    severities = [rule.severity for rule in rules]
    assert severities == sorted(severities, reverse=True)


@pytest.mark.parametrize("rule", [*RULES, *LIVE_RULES], ids=lambda rule: rule.id)
def test_a_rule_finds_one_thing_in_its_failing_example_and_none_in_the_other(rule: Rule) -> None:
    (finding,) = findings_of(EXAMPLES[rule.id].failing, rule)
    assert finding.severity == rule.severity
    assert all(evidence.sentence for evidence in finding.evidence)
    assert findings_of(EXAMPLES[rule.id].passing, rule) == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_passing_example_has_no_finding_as_bad(rule: Rule) -> None:
    """A remedy that makes something worse is none."""
    others = findings_of(EXAMPLES[rule.id].passing)
    assert [one.title for one in others if one.severity >= rule.severity > 1] == []


def test_a_route_that_only_some_reasons_to_die_lack_names_them() -> None:
    bound = binding("x", "dead")
    bound["arguments"] = {"x-match": "all-with-x", "x-first-death-reason": "rejected"}
    example = Example(
        queues=(queue("work", type="quorum", limit=3, dlx="x", key="k"), queue("dead")),
        exchanges=(exchange("x", "headers"),),
        bindings=(bound,),
    )
    (found,) = findings_of(example, BY_ID["F02"])
    assert found.evidence[0].sentence == (
        "No queue gets a message that dies in “work” (over the delivery limit) with the routing "
        "key “k”."
    )


BY_TENANT = {**binding("x", "other"), "arguments": {"x-match": "all", "tenant": "a"}}
# What some messages have changes where they go.
OPEN = {
    "F02": Example(
        queues=(queue("wait", ttl=5_000, dlx="x"), queue("other")),
        exchanges=(exchange("x", "topic"), exchange("in")),
        bindings=(binding("in", "wait", "k"), binding("x", "other", "other.#")),
    ),
    "F02 by headers": Example(
        queues=(queue("wait", ttl=5_000, dlx="x", key="k"), queue("other")),
        exchanges=(exchange("x", "headers"),),
        bindings=(BY_TENANT,),
    ),
    "F04": Example(
        queues=(queue("wait", ttl=5_000, dlx="x"), queue("other")),
        exchanges=(exchange("x"),),
        bindings=(binding("x", "wait", "k"), binding("x", "other", "other")),
    ),
    "F08": Example(
        queues=(queue("work", dlx="x"), {**queue("short"), "durable": False}, queue("other")),
        exchanges=(exchange("x"),),
        bindings=(binding("x", "short", "work"), binding("x", "other", "other")),
    ),
    "F15": Example(
        queues=(
            queue(
                "wait",
                type="quorum",
                ttl=5_000,
                dlx="x",
                strategy="at-least-once",
                overflow="reject-publish",
            ),
            queue("other"),
        ),
        exchanges=(exchange("x"),),
        bindings=(binding("x", "other", "other"),),
    ),
    # It comes back through the alternate exchange of what takes other keys.
    "F23": Example(
        queues=(queue("work", dlx="x"), queue("other")),
        exchanges=(exchange("x", alternate="back"), exchange("back")),
        bindings=(binding("x", "other", "other"), binding("back", "work", "k")),
    ),
}


@pytest.mark.parametrize("case", OPEN)
def test_what_headers_of_a_message_can_change_is_possible_and_has_no_command(case: str) -> None:
    (found,) = findings_of(OPEN[case], BY_ID[case[:3]])
    assert found.severity == Severity.STYLE
    assert found.title.startswith(f"{found.rule.title} (possible)")
    assert found.commands == ()
    assert found.remedy.startswith("First check whether the messages")
    what = "headers" if "headers" in case else "routing keys in CC or BCC"
    assert found.evidence[0].sentence.endswith(
        f", unless the message has {what} for another queue."
    )


@pytest.mark.parametrize("case", OPEN)
def test_what_no_header_of_a_message_can_change_is_sure(case: str) -> None:
    """The same without the binding that other messages take."""
    bound = tuple(one for one in OPEN[case].bindings if one["destination"] != "other")
    (found,) = findings_of(replace(OPEN[case], bindings=bound), BY_ID[case[:3]])
    assert (found.severity, "unless" in found.evidence[0].sentence) == (found.rule.severity, False)


@pytest.mark.parametrize(
    ("target", "more", "gone"),
    [
        ({"durable": False}, (), "when the broker restarts"),
        ({"auto_delete": True}, (), "after the last consumer is removed"),
        ({"durable": False}, (queue("lasting"),), ""),
        ({}, (), ""),
    ],
)
def test_dead_letters_whose_only_queue_does_not_last_are_found(
    target: Raw, more: tuple[Raw, ...], gone: str
) -> None:
    example = Example(
        queues=(queue("work", dlx="x", key="k"), {**queue("dead"), **target}, *more),
        exchanges=(exchange("x", "fanout"),),
        bindings=tuple(binding("x", one["name"]) for one in ({"name": "dead"}, *more)),
    )
    found = [
        evidence.sentence for one in findings_of(example, BY_ID["F08"]) for evidence in one.evidence
    ]
    assert all(gone in sentence for sentence in found)
    assert len(found) == bool(gone)


def test_a_full_queue_that_stores_its_own_dead_letters_does_not_drop_them() -> None:
    """RabbitMQ deletes what an at-least-once queue stores when its overflow becomes drop-head."""
    safe = {"strategy": "at-least-once", "overflow": "reject-publish", "dlx": ""}
    failing = EXAMPLES["F16"].failing
    full = queue("f16-copy", type="quorum", ttl=60_000, key="end", max_length=9, **safe)
    kept = (one for one in failing.queues if one["name"] != "f16-copy")
    (found,) = findings_of(replace(failing, queues=(*kept, full, queue("end"))), BY_ID["F16"])
    assert (found.repairs, found.commands) == ((), ())
    assert "would delete the dead letters that it stores" in found.remedy
    (found,) = findings_of(failing, BY_ID["F16"])
    assert found.repairs


WORK = queue("work")
TO_WORK = {"dlx": "", "key": "work"}


@pytest.mark.parametrize("rule", ["F19", "F20"])
@pytest.mark.parametrize(
    ("name", "consumers", "severity"),
    [
        ("work_dlq_5", None, Severity.TIMING),
        ("delay.5000..work", None, Severity.TIMING),
        ("hold", None, Severity.STYLE),
        ("hold", 0, Severity.TIMING),
        ("hold", 1, None),
    ],
)
def test_a_delay_queue_that_nothing_returns_to_is_checked_too(
    rule: str, name: str, consumers: int | None, severity: Severity | None
) -> None:
    """A file does not show whether consumers read a queue that has no name of a delay."""
    given = {"max_length": 7} if rule == "F19" else {"priorities": 5}
    wait = queue(name, ttl=5_000, **TO_WORK, **given, expires=60_000)
    numbers = {name: QueueNumbers(consumers=consumers)}
    found = findings_of(Example(queues=(wait, WORK), numbers=numbers), BY_ID[rule])
    assert [one.severity for one in found] == ([] if severity is None else [severity])
    for one in found:
        assert one.is_possible == (severity == Severity.STYLE)


def test_a_work_queue_whose_messages_expire_to_dead_letters_is_no_delay_queue() -> None:
    work = queue("work", ttl=5_000, dlx="", key="work.dead", max_length=7, priorities=5)
    example = Example(queues=(work, queue("work.dead")))
    assert findings_of(example, BY_ID["F19"], BY_ID["F20"]) == ()


@pytest.mark.parametrize(
    ("at_work", "at_wait", "severities"),
    [
        (1, 0, [Severity.STUCK]),
        (0, 0, [Severity.STYLE]),
        (None, None, [Severity.STYLE]),
        (1, 1, []),
    ],
)
def test_messages_that_no_ttl_and_no_consumer_takes_back_are_stuck(
    at_work: int | None, at_wait: int | None, severities: list[Severity]
) -> None:
    numbers = {
        "work": QueueNumbers(consumers=at_work),
        "wait": QueueNumbers(consumers=at_wait),
    }
    wait = queue("wait", dlx="", key="work")
    found = findings_of(
        Example(queues=(queue("work", dlx="", key="wait"), wait), numbers=numbers), BY_ID["F32"]
    )
    assert [one.severity for one in found] == severities
    assert all(bool(one.commands) == (one.severity == Severity.STUCK) for one in found)


def test_a_value_of_a_policy_that_is_refused_is_named_with_the_policy() -> None:
    given = policy("times", "^work", message_ttl="30000")
    (found,) = findings_of(Example(queues=(WORK,), policies=(given,)), BY_ID["F31"])
    (evidence,) = found.evidence
    assert (evidence.set_by, evidence.value) == ("policy times", "30000")
    assert evidence.sentence == (
        "RabbitMQ refuses the policy “times” because of message-ttl: it is text, not a whole "
        "number."
    )


def test_a_queue_for_errors_may_get_events_that_the_work_queue_gets_too() -> None:
    example = Example(
        queues=(queue("orders"), queue("orders.errors")),
        exchanges=(exchange("events", "topic"),),
        bindings=(
            binding("events", "orders", "orders.#"),
            binding("events", "orders.errors", "orders.error"),
        ),
    )
    assert findings_of(example, BY_ID["F33"]) == ()


def test_a_binding_with_arguments_is_restored_with_them() -> None:
    bound = Binding("h", "q", "", arguments=Arguments({"x-match": "all", "n": 1}))
    assert """--arguments='{"n": 1, "x-match": "all"}'""" in Admin((4, 3)).restore(bound)
    assert """arguments='{"n": 1, "x-match": "all"}'""" in Admin((3, 10)).restore(bound)


# What is rejected waits and comes back.
LOOP = queue("work", dlx="", key="wait")


def commands_of(*queues: Raw) -> list[str]:
    return [text for one in findings_of(Example(queues=queues)) for text in one.commands]


def test_of_two_commands_that_replace_one_policy_or_queue_only_the_first_is_given() -> None:
    """The second would undo the first: it knows nothing of it."""
    policies = commands_of(
        queue("q", type="quorum", ttl=5_000, overflow="reject-publish-dlx", max_length=10)
    )
    (policy,) = [text for text in policies if " set_policy " in text]
    assert "delayboard-q-dead-letters '^q$'" in policy
    assert "dead-letter-exchange" in policy
    wait = queue("wait", ttl=5_000, dlx="", key="work", max_length=10, priorities=3)
    (again,) = commands_of(wait, LOOP)
    assert "x-max-length" not in again.split(" delete_queue ")[1]


def test_a_queue_is_deleted_only_where_the_command_that_declares_it_works() -> None:
    (again,) = commands_of(queue("wait", ttl=5_000, dlx="", key="work", priorities=3), LOOP)
    first, delete, wanted = again.split(" && ")
    assert "declare queue" in first
    assert '"x-max-priority": 3' in first
    assert "delete_queue" in delete
    assert "declare queue" in wanted
    assert "x-max-priority" not in wanted


def test_a_name_that_looks_like_an_option_stays_a_name() -> None:
    odd = "--node=rabbit@evil"
    to_odd = queue("work", dlx="", key=odd)
    assert findings_of(
        Example(queues=(queue(odd, ttl=5_000, dlx="", key="work", priorities=3), to_odd))
    )
    assert commands_of(queue(odd, ttl=5_000, dlx="", key="work", priorities=3), to_odd) == []
    assert f"--destination={odd}" in Admin((4, 3)).bind("x", odd, "k")


@pytest.mark.parametrize(
    ("version", "url", "options"),
    [
        ((4, 3, 6), "http://rabbit.example:15672", "--host=rabbit.example --port=15672"),
        ((4, 3, 6), "https://rabbit.example", "--host=rabbit.example --port=443 --use-tls"),
        ((3, 10, 8), "https://rabbit.example/", "--host=rabbit.example --port=443 --ssl"),
    ],
)
def test_the_options_of_rabbitmqadmin_lead_to_the_management_api(
    version: tuple[int, ...], url: str, options: str
) -> None:
    found = Admin(version).connect(url, "an operator")
    assert found.replace(" --username='an operator'", "") == options
