"""The groups of parked messages: the list, one of them, and what people write."""

from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from delayboard.dead_letters.parked import groups
from delayboard.models import GroupHour, MessageGroup, RedactionKind, RedactionRule
from tests.builders import make_broker, make_user
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Queue
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)


@pytest.fixture
def viewer(broker: Broker) -> Client:
    know(broker, Queue("dead"))
    return signed_in(Role.VIEWER)


@pytest.fixture
def operator(broker: Broker) -> Client:
    know(broker, Queue("dead"))
    return signed_in(Role.OPERATOR)


def page(client: Client, **query: str) -> str:
    return text_of(client.get(reverse("dead_letters"), query))


def a_group(broker: Broker, number: int = 1, **values: object) -> MessageGroup:
    reported = {
        "fingerprint": f"{number:032}",
        "died_in": "orders",
        "reason": "rejected",
        "exception": f"shop.Exception{number:03}",
        "parked": number,
        "total": number,
        "first_at": NOW - timedelta(days=3),
        "last_at": NOW - timedelta(minutes=number),
    }
    return MessageGroup.objects.create(broker=broker, **(reported | values))


def names(text: str) -> list[str]:
    return re.findall(r"shop\.Exception\d+(?=</a>)", text)


def address_of(group: MessageGroup, view: str = "message_group") -> str:
    return reverse(view, args=[group.broker.slug, group.pk])


def test_nothing_parked_says_what_to_do_first(viewer: Client) -> None:
    assert "Press “Park … automatically” below" in page(viewer)


def test_parked_parked_messages_stand_by_what_they_died_of(viewer: Client, broker: Broker) -> None:
    shop = {"x-exception-type": "shop.NoStock", "__TypeId__": "shop.Placed"}
    twice = deaths_header(a_death("orders", exchange="sales", routing_keys=("order.placed",)))
    parked(broker, *(a_message(body, shop | twice) for body in (b"1", b"2")))
    parked(broker, a_message(headers=deaths_header(a_death("invoices"))))
    text = page(viewer)
    assert "shop.NoStock" in text
    assert "shop.Placed" in text
    assert "order.placed" in text
    assert MessageGroup.objects.count() == 2
    group = MessageGroup.objects.get(exception="shop.NoStock")
    assert group.parked == 2
    assert f'href="{address_of(group)}"' in text


def test_groups_of_another_broker_are_not_shown(viewer: Client, broker: Broker) -> None:
    other = make_broker(name="Other")
    group = a_group(other)
    text = text_of(viewer.get(reverse("dead_letters"), {"broker": broker.slug}))
    assert group.exception not in text
    assert viewer.get(reverse("message_group", args=[broker.slug, group.pk])).status_code == 404


def test_groups_are_sorted_and_walked_page_by_page(
    viewer: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PAGE", 2)
    for number in range(1, 6):
        a_group(broker, number, parked=3 if number < 4 else number)
    for sort, ordered in (("newest", [1, 2, 3, 4, 5]), ("count", [5, 4, 3, 2, 1])):
        seen: list[str] = []
        query = {"sort": sort}
        while True:
            text = page(viewer, **query)
            seen += names(text)
            following = re.search(r'after=(\d+)[^"]*" rel="next"', text)
            if following is None:
                break
            query["after"] = following[1]
        assert seen == [f"shop.Exception{number:03}" for number in ordered], sort


@pytest.mark.parametrize("place", ["x", "1,", "9" * 30, "-1", "1,2"])
def test_a_place_that_is_none_is_the_first_page(viewer: Client, broker: Broker, place: str) -> None:
    a_group(broker)
    assert names(page(viewer, after=place))


def test_a_place_behind_the_last_says_so(viewer: Client, broker: Broker) -> None:
    a_group(broker)
    assert "No more groups." in page(viewer, after="1")
    assert "No more groups." in page(viewer, after="9" * 18)


def test_the_text_is_looked_for_in_causes_and_notes(viewer: Client, broker: Broker) -> None:
    a_group(broker, 1, died_in="orders", note="known since Monday")
    a_group(broker, 2, died_in="invoices", routing_key="invoice.sent")
    for text, found in (
        ("MONDAY", ["001"]),
        ("invoice.sent", ["002"]),
        ("exception002 rejected", ["002"]),
        ("shop", ["001", "002"]),
        ("nowhere", []),
        ("100%", []),
    ):
        assert names(page(viewer, q=text)) == [f"shop.Exception{one}" for one in found], text


def test_what_has_no_parked_parked_message_is_shown_when_asked_for(
    viewer: Client, broker: Broker
) -> None:
    a_group(broker, parked=0, discarded=4)
    assert "No parked messages" in page(viewer)
    text = page(viewer, empty="1")
    assert names(text)
    assert "4 discarded" in text


def test_a_broker_that_is_gone_still_has_its_groups(broker: Broker) -> None:
    know(broker, Queue("dead"), error="It does not answer.")
    a_group(broker)
    text = page(signed_in(Role.VIEWER))
    assert "cannot be reached" in text
    assert names(text)


def test_a_trend_is_drawn_and_said(viewer: Client, broker: Broker) -> None:
    group = a_group(broker)
    for hours, died in ((1, 3), (30, 40)):
        hour = (NOW - timedelta(hours=hours)).replace(minute=0, second=0, microsecond=0)
        GroupHour.objects.create(group=group, hour=hour, died=died)
    assert "3 dead-lettered in the last 24 hours, at most 3 in an hour." in page(viewer)
    assert "43 dead-lettered in the last 7 days" in page(viewer, trend="week")
    assert "3 dead-lettered in the last 24 hours" in page(viewer, trend="nonsense")


def test_a_group_has_a_page_of_its_own(viewer: Client, broker: Broker) -> None:
    group = a_group(broker, note="<b>bold</b>", link="https://tracker.test/1")
    hour = (NOW - timedelta(days=20)).replace(minute=0, second=0, microsecond=0)
    GroupHour.objects.create(group=group, hour=hour, died=7)
    text = text_of(viewer.get(address_of(group)))
    assert "&lt;b&gt;bold" in text
    assert "Earlier deaths are not shown." in text
    assert f"?q=group:{group.pk}" in text
    assert "Discard all" not in text
    assert '<rect x="' not in text
    days = text_of(viewer.get(address_of(group), {"by": "day"}))
    assert days.count('<rect x="') == 1
    assert "7 dead-lettered in the last 60 days, at most 7 in a day." in days


def test_an_operator_can_discard_and_restore_the_group(operator: Client, broker: Broker) -> None:
    group = a_group(broker, 2, discarded=3)
    text = text_of(operator.get(address_of(group)))
    assert "Discard 2 parked messages" in text
    assert "Restore 3 discarded messages" in text
    assert text.count(f'name="group" value="{group.pk}"') == 4


def test_what_is_parked_after_the_page_was_shown_is_not_discarded_with_the_group(
    operator: Client, broker: Broker
) -> None:
    (first,) = parked(broker, a_message(b"1"))
    text = text_of(operator.get(address_of(first.group)))
    assert f'name="newest" value="{first.pk}"' in text
    parked(broker, a_message(b"2"))
    asked = {"group": first.group_id, "newest": first.pk}
    operator.post(reverse("parked_messages_discard", args=[broker.slug]), asked)
    first.group.refresh_from_db()
    assert (first.group.discarded, first.group.parked) == (1, 1)


@pytest.mark.parametrize("link", ["https://wiki/orders", "http://10.0.0.7:8080/x?y=1"])
def test_a_link_may_lead_into_the_own_network(operator: Client, broker: Broker, link: str) -> None:
    group = a_group(broker)
    operator.post(address_of(group, "message_group_edit"), {"link": link})
    group.refresh_from_db()
    assert group.link == link


def test_what_people_write_is_kept_and_audited(operator: Client, broker: Broker) -> None:
    group = a_group(broker)
    make_user("ann", Role.VIEWER, broker)
    reported = {
        "note": "  first line\r\nanother line",
        "owner": "ann",
        "link": "https://tracker.test/7",
    }
    edit = address_of(group, "message_group_edit")
    text = text_of(operator.post(edit, reported, follow=True))
    assert "Notes saved." in text
    # Beside the title, where the message appears, and not only in the form below.
    head = text.partition('aria-labelledby="cause"')[0]
    assert text.count("first line\nanother line</dd>") == 1
    assert "<bdi>ann</bdi>" in head
    group.refresh_from_db()
    assert group.note == "first line\nanother line"
    assert group.owner is not None
    assert (group.owner.username, group.link) == ("ann", "https://tracker.test/7")
    entry = AuditEntry.objects.get(action="dead-letter group described")
    assert entry.details["owner"] == "ann"
    text = page(operator)
    assert "first line" in text
    assert "another line" not in text
    assert 'href="https://tracker.test/7"' in text
    assert names(page(operator, q="ann"))
    operator.post(edit, {})
    group.refresh_from_db()
    assert (group.note, group.link) == ("", "")
    assert MessageGroup.objects.filter(owner=None).count() == 1


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ({"link": "javascript:alert(1)"}, "must begin with http"),
        ({"link": "ftp://tracker.test/"}, "must begin with http"),
        ({"link": "https://tracker.test/" + "x" * 500}, "at most 500"),
        ({"owner": "nobody"}, "has no access to"),
        ({"note": "n" * 10_001}, "longer than 10\u202f000"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_sentence(
    operator: Client, broker: Broker, reported: dict[str, str], said: str
) -> None:
    group = a_group(broker, note="as it was")
    text = text_of(operator.post(address_of(group, "message_group_edit"), reported, follow=True))
    assert "Nothing was saved." in text
    assert said in text
    group.refresh_from_db()
    assert (group.note, group.link, group.owner) == ("as it was", "", None)


def test_only_operators_write(viewer: Client, broker: Broker) -> None:
    group = a_group(broker)
    assert viewer.post(address_of(group, "message_group_edit"), {"note": "x"}).status_code == 403
    stranger = signed_in()
    assert stranger.get(address_of(group)).status_code == 404


def test_an_owner_who_lost_the_role_stays_until_somebody_changes_it(
    operator: Client, broker: Broker
) -> None:
    group = a_group(broker, owner=make_user("gone"))
    assert "<option selected>gone</option>" in text_of(operator.get(address_of(group)))
    edit = address_of(group, "message_group_edit")
    operator.post(edit, {"note": "still", "owner": "gone"})
    group.refresh_from_db()
    assert group.owner is not None


def test_a_page_of_groups_asks_the_database_no_more_for_more_of_them(
    viewer: Client, broker: Broker, django_assert_max_num_queries: object
) -> None:
    for number in range(1, 60):
        group = a_group(broker, number)
        GroupHour.objects.create(group=group, hour=NOW.replace(minute=0), died=1)
    with django_assert_max_num_queries(30):  # type: ignore[operator]
        page(viewer)


def test_a_group_shows_its_newest_parked_message_within_the_rules(
    operator: Client, viewer: Client, broker: Broker
) -> None:
    older, newest = parked(broker, a_message(b"old"), a_message(b'{"card": 4111, "name": "Ada"}'))
    address = address_of(newest.group)
    text = text_of(operator.get(address))
    assert reverse("parked_message", args=[broker.slug, newest.pk]) in text
    assert reverse("parked_message", args=[broker.slug, older.pk]) not in text
    assert "4111" in text
    assert "4111" not in text_of(viewer.get(address))
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="card", least_role=Role.ADMIN)
    text = text_of(operator.get(address))
    assert ("4111" in text, "Ada" in text) == (False, True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "The body is empty."),
        (b"\x00\xff", "The body is binary."),
        (gzip.compress(b"packed needle", mtime=0), "packed needle"),
        (b"x" * 100_000, "xxx"),
        (b"<script>alert(1)</script>", "&lt;script&gt;"),
    ],
)
def test_an_example_is_shown_whatever_it_is(
    operator: Client, broker: Broker, body: bytes, said: str
) -> None:
    (parked_message,) = parked(broker, a_message(body))
    text = text_of(operator.get(address_of(parked_message.group)))
    assert said in text
    assert "x" * 1000 not in text


def test_an_example_of_a_long_body_is_hidden_whole_by_any_rule(
    operator: Client, broker: Broker
) -> None:
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="card", least_role=Role.ADMIN)
    (parked_message,) = parked(
        broker, a_message(b'{"card": "4111", "more": "%s"}' % (b"x" * 70_000))
    )
    text = text_of(operator.get(address_of(parked_message.group)))
    assert "A redaction rule hides the body." in text
    assert "4111" not in text


def test_groups_are_merged_and_restored_without_javascript(
    broker: Broker, operator: Client
) -> None:
    kept, other = a_group(broker, 3, note="Ask Ada"), a_group(broker, 2, exception_message="<b>")
    text = page(operator)
    assert 'form="merge-groups"' in text
    assert f'name="group" value="{kept.pk}"' in text
    address = reverse("merge_message_groups", args=[broker.slug])
    text = text_of(operator.get(address, {"group": [kept.pk, other.pk]}))
    label = f"Use group {kept.pk}, shop.Exception003"
    assert f'name="into" value="{kept.pk}" aria-label="{label}" checked' in text
    assert "&lt;b&gt;" in text
    sent = {"group": [kept.pk, other.pk], "into": kept.pk, "name": "No stock"}
    text = text_of(operator.post(address, sent, follow=True))
    assert "Merged 2 groups." in text
    assert '<h1 class="name">No stock</h1>' in text
    assert "5 parked" in text
    assert "shop.Exception002" in text
    assert operator.get(address_of(other)).headers["Location"] == address_of(kept)
    assert "shop.Exception002" not in page(operator)
    text = text_of(operator.post(address_of(kept, "undo_merge"), follow=True))
    assert "Restored 1 merged group." in text
    assert names(page(operator)) == ["shop.Exception002", "shop.Exception003"]
    text = text_of(operator.post(address_of(kept, "undo_merge"), follow=True))
    assert "Nothing was undone. This group contains no merged groups." in text


def test_a_merge_needs_two_groups_and_an_operator(broker: Broker, operator: Client) -> None:
    group = a_group(broker)
    address = reverse("merge_message_groups", args=[broker.slug])
    for chosen in ([], [group.pk], ["x"], [10**30]):
        answer = operator.get(address, {"group": chosen})
        assert "Fewer than two groups are selected" in text_of(answer)
    sent = {"group": [group.pk], "into": group.pk}
    assert "Nothing was merged. Select two or more" in text_of(operator.post(address, sent))
    viewer = signed_in(Role.VIEWER)
    assert viewer.post(address, sent).status_code == 403
    assert viewer.post(address_of(group, "undo_merge")).status_code == 403
    a_group(broker, 2)
    assert "merge-groups" not in page(viewer)


def test_a_rule_hides_the_message_of_an_exception(broker: Broker, operator: Client) -> None:
    group = a_group(broker, exception_message="Key (<email>) exists")
    assert "Key (&lt;email&gt;) exists" in page(operator)
    rule = {"kind": RedactionKind.HEADER, "pattern": "x-exception-message"}
    RedactionRule.objects.create(**rule, least_role=Role.ADMIN)
    for text in (page(operator), text_of(operator.get(address_of(group)))):
        assert "Key (&lt;email&gt;) exists" not in text
