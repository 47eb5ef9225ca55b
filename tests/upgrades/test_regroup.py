"""Groups of the version before, of which each had its own id in the key, after migrating."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.models import Sum

from delayboard.dead_letters import journal
from delayboard.models import (
    DeadLetter,
    GroupHour,
    LetterChange,
    LetterGroup,
    LetterState,
    RedirectRule,
    ReplayBatch,
)
from tests.delayboard.builders import a_death, a_message, deaths_header
from tests.topology.builders import NOON
from topology.models import Broker, Work

ID = "{:08x}-e29b-41d4-a716-446655440000"


class Old:
    """Rows as the version before wrote them."""

    def __init__(self, apps: Any) -> None:
        def table(name: str) -> Any:
            return apps.get_model("delayboard", name).objects

        self.table, self.apps, self.number = table, apps, 0
        self.broker = apps.get_model("topology", "Broker").objects.create(name="Old", slug="old")

    def group(self, key: str, **stated: Any) -> Any:
        self.number += 1
        return self.table("LetterGroup").create(
            broker=self.broker,
            fingerprint=f"{self.number:032x}",
            died_in="orders",
            reason="rejected",
            exchange="orders",
            routing_key=key,
            first_at=NOON,
            last_at=NOON,
            **stated,
        )

    def letter(self, group: Any, state: str = "parked", after: int = 0, **headers: str) -> int:
        """A message of the group, counted in it, that died so many hours after noon."""
        at = NOON + timedelta(hours=after)
        deaths = deaths_header(a_death(routing_keys=(group.routing_key,), first_at=at))
        prepared = journal.prepare(a_message(headers=deaths | headers))
        self.table("Body").get_or_create(sha256="a", defaults={"data": b"{}", "size": 2})
        row = self.table("DeadLetter").create(
            broker=self.broker,
            queue="dead",
            group=group,
            state=state,
            properties=prepared.message.properties.raw,
            body_id="a",
            size=2,
            redelivered=False,
            content_id=prepared.content_id,
            deaths=1,
            died_at=at,
            parked_at=at,
            state_at=at,
        )
        setattr(group, state, getattr(group, state) + 1)
        group.total += 1
        group.last_at = max(group.last_at, at)
        group.save()
        hour, _ = self.table("GroupHour").get_or_create(group=group, hour=at)
        hour.died += 1
        hour.save()
        return int(row.pk)


def check_counts() -> None:
    """Every group counts its messages, and every message has the group of its failure."""
    for group in LetterGroup.objects.all():
        for state in LetterState.values:
            number = DeadLetter.objects.filter(group=group, state=state).count()
            assert getattr(group, state) == number
        died = GroupHour.objects.filter(group=group).aggregate(died=Sum("died"))["died"] or 0
        assert died == group.total
    for row in DeadLetter.objects.select_related("group", "body"):
        assert row.group.fingerprint == journal.prepare(row.message).failure.fingerprint


def test_three_hundred_groups_of_one_key_become_one(before_groups: Any) -> None:
    rows = Old(before_groups)
    with transaction.atomic():
        for number in range(300):
            group = rows.group(f"order.created.{ID.format(number)}")
            rows.letter(group, after=number % 3)
    first = rows.table("LetterGroup").order_by("pk").first()
    rows.letter(first, "discarded")
    other = rows.group("order.cancelled")
    rows.letter(other)
    call_command("migrate", verbosity=0)
    found = {group.routing_key: group for group in LetterGroup.objects.all()}
    assert set(found) == {"order.created.<uuid>", "order.cancelled"}
    joined = found["order.created.<uuid>"]
    assert (joined.pk, joined.parked, joined.discarded, joined.total) == (first.pk, 300, 1, 301)
    assert (joined.first_at, joined.last_at) == (NOON, NOON + timedelta(hours=2))
    hours = GroupHour.objects.filter(group=joined).order_by("hour")
    assert list(hours.values_list("died", flat=True)) == [101, 100, 100]
    assert found["order.cancelled"].pk == other.pk
    check_counts()
    broker = Broker.objects.get(slug="old")
    message = a_message(
        headers=deaths_header(a_death(routing_keys=(f"order.created.{ID.format(7)}",)))
    )
    journal.put(broker, "dead", [message], at=NOON)
    assert LetterGroup.objects.get(pk=joined.pk).parked == 301


def test_one_group_with_two_exception_messages_becomes_two(before_groups: Any) -> None:
    rows = Old(before_groups)
    group = rows.group("orders", note="Ask Ada", link="https://wiki/1")
    rule = {"exchange": "new", "routing_key": "k", "set_at": NOON}
    rows.table("RedirectRule").create(group=group, **rule)
    said = {"x-exception-message": "HTTP 404 for order 1"}
    rows.letter(group, "parked", 0, **said)
    rows.letter(group, "parked", 2, **said)
    rows.letter(group, "replayed", 1, **{"x-exception-message": "HTTP 500 for order 2"})
    rows.table("LetterGroup").filter(pk=group.pk).update(total=7)
    call_command("migrate", verbosity=0)
    found = {one.exception_message: one for one in LetterGroup.objects.all()}
    missing, broken = (found[f"HTTP {code} for order <number>"] for code in (404, 500))
    assert (missing.pk, missing.parked, missing.replayed, missing.total) == (group.pk, 2, 0, 6)
    assert (broken.parked, broken.replayed, broken.total) == (0, 1, 1)
    assert broken.first_at == broken.last_at == NOON + timedelta(hours=1)
    assert {(one.note, one.link) for one in found.values()} == {("Ask Ada", "https://wiki/1")}
    assert RedirectRule.objects.filter(exchange="new", routing_key="k").count() == 2
    LetterGroup.objects.filter(pk=missing.pk).update(total=2)
    check_counts()


@pytest.mark.both_databases
def test_notes_owners_links_and_redirects_of_joined_groups(before_groups: Any) -> None:
    rows = Old(before_groups)
    user = before_groups.get_model("auth", "User").objects.create(username="ada")
    first = rows.group("order.1", note="Known.", link="https://wiki/1")
    second = rows.group("order.2", note="Ask Ada.", link="https://wiki/2", owner_id=user.pk)
    third = rows.group("order.3", note="Known.")
    empty = rows.group("order.4", total=5)
    for group, number in ((first, 3), (second, 2), (third, 1)):
        for _ in range(number):
            rows.letter(group)
    for group in (first, second):
        rule = {"exchange": "new", "routing_key": group.routing_key, "set_at": NOON}
        rows.table("RedirectRule").create(group=group, **rule)
    call_command("migrate", verbosity=0)
    group = LetterGroup.objects.get()
    assert (group.routing_key, group.parked, group.total) == ("order.<number>", 6, 11)
    assert group.pk == empty.pk
    assert group.owner is not None
    assert group.owner.get_username() == "ada"
    assert group.link == "https://wiki/1"
    lines = group.note.split("\n\n")
    assert lines[:3] == ["Known.", "Ask Ada.", "Link: https://wiki/2"]
    assert "different redirects" in lines[3]
    assert "new order.1" in lines[3]
    assert not RedirectRule.objects.exists()


def test_what_was_asked_of_a_group_that_is_another_now_does_not_go_on(before_groups: Any) -> None:
    rows = Old(before_groups)
    user = before_groups.get_model("auth", "User").objects.create(username="ada")
    first, second = rows.group("order.1"), rows.group("order.2")
    for group in (first, first, second):
        rows.letter(group)
    works = before_groups.get_model("topology", "Work").objects
    batches, changes = rows.table("ReplayBatch"), rows.table("LetterChange")
    said = {"broker": rows.broker, "group": second, "state_at": NOON}
    ended = batches.create(state="done", **said)
    preparing = batches.create(state="preparing", **said, uid=uuid.uuid4())
    work = works.create(kind="change", subject=1, broker=rows.broker, state="waiting")
    about = {"broker": rows.broker, "group": second, "to_state": "discarded", "newest": 9}
    change = changes.create(work=work, created_by=user, **about)
    call_command("migrate", verbosity=0)
    assert ReplayBatch.objects.get(pk=ended.pk).group_id == first.pk
    assert ReplayBatch.objects.get(pk=preparing.pk).group_id is None
    assert LetterChange.objects.get(pk=change.pk).group_id == first.pk
    assert Work.objects.get(pk=work.pk).state == "cancelled"
