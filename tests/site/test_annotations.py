"""Annotations by page, API and command, and those that Delayboard's own rows give."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from analytics.models import Annotation, Gap
from analytics.results.annotations import Mark, join_outages, read_marks, select_marks
from tests.builders import make_broker, make_pair, make_user
from tests.commands import run
from tests.site.api_client import api_of
from topology import audit
from topology.models import AuditEntry, Role, Topology, Work

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_range_has_what_overlaps_it_and_concerns_it() -> None:
    marks = [
        Mark(NOON, None, "deploy", "of all"),
        Mark(NOON - 2 * HOUR, NOON, "outage", "until noon", broker="a"),
        Mark(NOON - 2 * HOUR, NOON - HOUR, "outage", "before", broker="a"),
        Mark(NOON + HOUR, None, "deploy", "after", broker="a"),
        Mark(NOON, None, "deploy", "of t", broker="a", topology="t"),
        Mark(NOON, None, "deploy", "of b", broker="b"),
    ]

    def texts(**of: Any) -> list[str]:
        return [one.text for one in select_marks(marks, NOON, NOON + HOUR, **of)]

    assert texts() == ["until noon", "of all", "of b", "of t"]
    assert texts(brokers=["a"]) == ["until noon", "of all", "of t"]
    assert texts(topology="u") == ["until noon", "of all", "of b"]


def test_gaps_of_a_brokers_topologies_are_one_outage() -> None:
    def gap(second: int, topology: str, broker: str = "a") -> Mark:
        at = NOON + timedelta(seconds=second)
        return Mark(at, at + HOUR, "outage", "lost", broker=broker, topology=topology)

    joined = join_outages([gap(0, "t"), gap(3, "u"), gap(0, "t", "b"), gap(7200, "t")])
    assert [(one.broker, one.topology, one.at) for one in joined] == [
        ("a", "", NOON),
        ("a", "t", NOON + 2 * HOUR),
        ("b", "t", NOON),
    ]
    assert joined[0].until_at == NOON + HOUR + timedelta(seconds=3)


@pytest.fixture
def pair(db: None) -> Topology:
    return make_pair(make_broker())


def test_own_changes_replays_and_gaps_add_themselves(pair: Topology) -> None:
    broker = pair.broker
    audit.record(None, "topology applied", broker=broker, what=pair.name)
    audit.record(None, "topology applied", broker=broker, what="x", outcome="failed: refused")
    named = {"batch": 7, "name": "after the fix"}
    audit.record(None, "replay started", broker=broker, what="group 3", details=named)
    Work.objects.create(kind="replay", subject=7, broker=broker, ended_at=NOON + HOUR)
    audit.record(None, "queue peeked", broker=broker, what="x")
    AuditEntry.objects.update(at=NOON)
    Gap.objects.create(topology=pair, from_at=NOON - HOUR, until_at=NOON, why="The tap was full.")
    found = read_marks(NOON - HOUR, NOON + HOUR, [broker])
    assert [(one.kind, one.text, one.topology, one.until_at) for one in found] == [
        ("outage", "The tap was full.", pair.slug, NOON),
        ("change", f"Topology applied: {pair.name}", pair.slug, None),
        ("replay", "Replay: after the fix", "", NOON + HOUR),
    ]
    assert read_marks(NOON - HOUR, NOON + HOUR, [make_broker(name="Other")]) == []


@pytest.mark.parametrize(("role", "author"), [(Role.OPERATOR, ""), (Role.ADMIN, "bob")])
def test_who_made_a_change_is_told_to_those_who_may_audit(
    pair: Topology, role: Role, author: str
) -> None:
    bob = make_user("bob", Role.ADMIN, pair.broker)
    audit.record(bob, "topology applied", broker=pair.broker, what=pair.name)
    api = api_of(make_user("ann", role, pair.broker), role)
    (mark,) = api.get("annotations").json()["items"]
    assert (mark["kind"], mark["author"]) == ("change", author)


def test_the_api_adds_lists_and_deletes(pair: Topology) -> None:
    user = make_user("ann", Role.OPERATOR, pair.broker)
    api = api_of(user, Role.OPERATOR)
    body = {"version": "2.4.0", "topology": pair.slug, "at": "1h ago"}
    made = api.post("annotations", body).json()
    assert (made["text"], made["kind"], made["author"]) == ("2.4.0", "deploy", "ann")
    assert (made["broker"], made["topology"]) == (pair.broker.slug, pair.slug)
    assert api.get("annotations").json()["items"] == [made]
    assert api.get("annotations", {"until": "2h ago"}).json()["items"] == []
    # Of all brokers: the role on one is not enough.
    assert api.post("annotations", {"text": "2.5.0"}).status_code == 403
    for wrong in ({}, {"text": "a\x00b"}, {"kind": "x"}, {"at": "soon"}, {"until": "1 day ago"}):
        given = {"topology": pair.slug} | ({"text": "x"} if wrong else {}) | wrong
        assert api.post("annotations", given).status_code == 422, wrong
    assert api.post(f"annotations/{made['id']}/delete").status_code == 200
    assert not Annotation.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="annotation").values_list("action")
    assert [one for (one,) in actions] == ["annotation deleted", "annotation added"]


def test_the_command_adds_lists_and_deletes(pair: Topology) -> None:
    code, out, _ = run("annotate", "shop 2.4.0", "--release", "2.4.0", "--topology", pair.slug)
    assert (code, "deploy" in out, pair.slug in out) == (0, True, True)
    row = Annotation.objects.get()
    assert (row.version, row.author, row.broker) == ("2.4.0", "delayboard", pair.broker)
    assert [one["id"] for one in json.loads(run("annotate", "--json").out)] == [row.pk]
    assert run("annotate", "x", "--at", "soon").code == 2
    assert run("annotate", "--delete", "99999").code == 2
    assert run("annotate", "--delete", str(row.pk)).code == 0
    assert run("annotate").out == "No annotations.\n"


def test_the_page_adds_and_deletes_for_operators(pair: Topology) -> None:
    client = Client()
    client.force_login(make_user("ann", Role.OPERATOR, pair.broker))
    add, remove = "/reports/annotations/add/", "/reports/annotations/delete/"
    answer = client.post(add, {"text": "shop 2.4.0", "kind": "deploy", "topology": pair.slug})
    assert answer.status_code == 302
    row = Annotation.objects.get()
    assert client.post(add, {"text": "x"}).status_code == 403
    other = Client()
    other.force_login(make_user("eve", Role.OPERATOR, make_broker(name="Other")))
    assert other.post(add, {"text": "x", "topology": pair.slug}).status_code == 404
    assert other.post(remove, {"annotation": row.pk}).status_code == 404
    assert client.post(remove, {"annotation": row.pk}).status_code == 302
    assert not Annotation.objects.exists()
