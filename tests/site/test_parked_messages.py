from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from delayboard.dead_letters.parked.store import change_parked_messages
from delayboard.dead_letters.search import index as indexer
from delayboard.dead_letters.search import listing
from delayboard.models import ParkedMessage, ParkedState, RedactionKind, RedactionRule, SavedView
from tests.builders import make_broker
from tests.delayboard.search.builders import index, put
from tests.site.page_setup import signed_in, text_of
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db


def page(client: Client, **query: Any) -> str:
    return text_of(client.get(reverse("parked_messages", args=["test-broker"]), query))


def shown(text: str) -> list[str]:
    """The names of the messages on a page, in order."""
    return re.findall(r'<th scope="row"><a class="name"[^>]*>([^<]*)</a>', text)


@pytest.fixture
def three(broker: Broker) -> list[ParkedMessage]:
    rows = [
        put(broker, {"amount": 10}, {"tenant": 1}, message_id="first", reason="expired"),
        put(broker, b"<script>alert(1)</script>", {"tenant": 2}, message_id="second"),
        put(broker, {"amount": 99}, {"tenant": 42}, message_id="third", queue="other"),
    ]
    index()
    return rows


def test_an_empty_list_says_how_to_begin(broker: Broker) -> None:
    text = page(signed_in(Role.VIEWER))
    assert "No parked messages" in text
    assert "Import parked messages" not in text


def test_the_newest_stand_first_with_what_they_died_of(three: list[ParkedMessage]) -> None:
    text = page(signed_in(Role.OPERATOR))
    assert shown(text) == ["third", "second", "first"]
    assert '<p class="quiet">3</p>' in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert f'name="newest" value="{three[2].pk}"' in text
    assert "Select all 3 messages" in text


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"q": "header.tenant:42"}, ["third"]),
        ({"q": "body.amount:<50"}, ["first"]),
        ({"q": "queue:dead"}, ["second", "first"]),
        ({"q": "amount -third"}, ["first"]),
        ({"q": "state:discarded"}, []),
        ({"q": "state:replayed"}, []),
        ({"state": "delayed"}, []),
        ({"state": "parked", "q": "reason:expired"}, ["first"]),
        ({"state": "nonsense"}, ["third", "second", "first"]),
        ({"after": "x"}, ["third", "second", "first"]),
    ],
)
def test_a_query_in_the_address_narrows(
    three: list[ParkedMessage], query: dict[str, str], names: list[str]
) -> None:
    text = page(signed_in(Role.OPERATOR), **query)
    assert shown(text) == names
    assert ("No matching messages" in text) == (not names)


def test_the_oldest_stand_first_where_an_index_has_them_in_order(
    three: list[ParkedMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = signed_in(Role.OPERATOR)
    monkeypatch.setattr(listing, "PAGE", 2)
    text = page(client, sort="parked", q="queue:*")
    assert shown(text) == ["first", "second"]
    assert 'aria-sort="ascending"' in text
    following = re.search(r'href="([^"]*after=[^"]*)" rel="next"', text)
    assert following is not None
    address = reverse("parked_messages", args=["test-broker"])
    rest = text_of(client.get(address + following[1].replace("&amp;", "&")))
    assert shown(rest) == ["third"]
    assert "First page</a>" in rest
    # A search of content reads the newest first.
    text = page(client, sort="parked", q="amount")
    assert (shown(text), "aria-sort" in text) == (["third", "first"], False)


def test_a_group_in_the_address_narrows(three: list[ParkedMessage]) -> None:
    text = page(signed_in(Role.VIEWER), group=three[0].group_id)
    assert shown(text) == ["first"]
    assert f'value="group:{three[0].group_id}"' in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("foo:1", "the field is unknown"),
        ('"open', "is not closed"),
        ("body.amount:>x", "a number is expected"),
        ("x" * 501, "longer than 500"),
    ],
)
def test_a_broken_query_is_explained_and_lists_nothing(
    three: list[ParkedMessage], query: str, said: str
) -> None:
    text = page(signed_in(Role.OPERATOR), q=query)
    assert said in text
    assert shown(text) == []
    answer = signed_in(Role.OPERATOR).get(
        reverse("parked_messages_export", args=["test-broker"]), {"as": "csv", "q": query}
    )
    assert answer.status_code == 400


@pytest.mark.parametrize("query", ["\x01", "key:\x7f", "\u202e*", "header.\ud7ff:1", "' OR 1=1 --"])
def test_no_query_is_an_error_of_ours(three: list[ParkedMessage], query: str) -> None:
    page(signed_in(Role.OPERATOR), q=query)


def test_pages_follow_each_other(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    for number in range(5):
        put(broker, {}, message_id=f"m{number}")
    client, names, after = signed_in(Role.VIEWER), [], ""
    for _ in range(3):
        text = page(client, after=after)
        names.append(shown(text))
        found = re.search(r'href="\?after=(\d+)" rel="next"', text)
        after = found[1] if found else ""
    assert names == [["m4", "m3"], ["m2", "m1"], ["m0"]]
    assert "Last page" in text
    assert "No more messages." in page(client, after=1)


def test_a_viewer_sees_rows_without_content_and_cannot_ask_about_it(
    three: list[ParkedMessage],
) -> None:
    viewer = signed_in(Role.VIEWER)
    text = page(viewer)
    assert shown(text) == ["third", "second", "first"]
    assert "amount" not in text.replace("body.amount:&gt;100", "").replace("body.order.amount", "")
    assert 'name="parked_message"' not in text
    for query in ("amount", "header.tenant:42", "-body.amount:>5"):
        assert "needs the role operator" in page(viewer, q=query)
    assert shown(page(viewer, q="reason:expired")) == ["first"]
    export = reverse("parked_messages_export", args=["test-broker"])
    assert viewer.get(export, {"as": "csv"}).status_code == 403
    assert not AuditEntry.objects.filter(action__startswith="parked_messages").exists()


def test_a_stranger_finds_nothing(three: list[ParkedMessage]) -> None:
    stranger = signed_in(Role.ADMIN, make_broker(name="Other"))
    for name in ("parked_messages", "parked_messages_export"):
        assert stranger.get(reverse(name, args=["test-broker"])).status_code == 404


def test_who_read_what_is_written_down(three: list[ParkedMessage]) -> None:
    page(signed_in(Role.OPERATOR), q="header.tenant:42")
    entry = AuditEntry.objects.get(action="parked messages listed")
    assert (entry.what, entry.details["parked_messages"]) == ("header.tenant:42", 1)


def test_what_a_rule_hides_is_neither_shown_nor_asked_for(three: list[ParkedMessage]) -> None:
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="ten*", least_role=Role.ADMIN)
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="$.amount", least_role=Role.ADMIN)
    operator = signed_in(Role.OPERATOR)
    text = page(operator)
    assert "99" not in "".join(re.findall(r"<bdi>(.*?)</bdi>", text))
    assert "redacted" in text
    hidden = ("header.tenant:42", "HEADER.Tenant:*", "-header.x.tenant:1", "body.amount:>5",
              "body.Amount.x:1", "body.amount.currency:e*")  # fmt: skip
    for query in hidden:
        assert "A redaction rule hides" in page(operator, q=query)
    assert "you cannot search for words" in page(operator, q="amount")
    assert shown(page(operator, q="reason:expired")) == ["first"]
    assert shown(page(operator, q="-header.other:1")) == ["third", "second", "first"]
    assert shown(page(signed_in(Role.ADMIN), q="header.tenant:42")) == ["third"]
    answer = operator.get(reverse("parked_messages_export", args=["test-broker"]), {"as": "jsonl"})
    exported = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    assert b'"amount":"redacted"' in exported.replace(b"\\", b"").replace(b": ", b":")
    assert b"99" not in re.sub(rb'"(?:uid|content_id|fingerprint)":"[^"]*"', b"", exported)


def test_parked_messages_that_are_not_indexed_yet_are_counted_and_the_newest_indexed(
    three: list[ParkedMessage], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "NEWEST", 1)
    put(broker, {}, {"tenant": 42}, message_id="older")
    put(broker, {}, {"tenant": 42}, message_id="young")
    text = page(signed_in(Role.OPERATOR), q="header.tenant:42")
    assert "1 message is not indexed yet" in " ".join(text.split())
    assert shown(text) == ["young", "third"]
    index()
    assert "not indexed yet" not in page(signed_in(Role.OPERATOR), q="header.tenant:42")


def test_a_view_is_saved_listed_and_deleted(three: list[ParkedMessage]) -> None:
    operator = signed_in(Role.OPERATOR)
    address = reverse("saved_views") + "?broker=test-broker"
    view = {"list": "parked_messages", "sort": "parked", "columns": "size"}
    values = view | {"name": "Tenant <42>", "q": "header.tenant:42", "shared": "1"}
    text = text_of(operator.post(address, values, follow=True))
    assert "The view “Tenant &lt;42&gt;” is saved." in text
    assert shown(text) == ["third"]
    assert ">Size<" in text
    assert ">Deaths<" not in text
    saved = "/parked/?q=header.tenant%3A42&amp;columns=size&amp;sort=parked"
    assert f'{saved}"' in page(signed_in(Role.VIEWER))
    assert "already" in text_of(operator.post(address, values, follow=True))
    for wrong in ({"name": "", "q": "x"}, {"name": "x", "q": "foo:1"}):
        text = text_of(operator.post(address, view | wrong, follow=True))
        assert "Nothing was saved." in text
    row = SavedView.objects.get()
    text_of(operator.post(address, view | {"delete": row.pk}, follow=True))
    text = text_of(operator.post(address, view | {"delete": row.pk}, follow=True))
    assert "already deleted" in text
    actions = AuditEntry.objects.filter(action__contains="view").order_by("pk")
    assert [one.action for one in actions] == ["view shared", "shared view deleted"]


def test_an_export_is_imported_by_an_admin_and_once(three: list[ParkedMessage]) -> None:
    make_broker(name="Other")
    export = reverse("parked_messages_export", args=["test-broker"])
    answer = signed_in(Role.OPERATOR).get(export, {"as": "jsonl", "q": "queue:dead"})
    data = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    assert AuditEntry.objects.get(action="parked messages exported").what == "queue:dead"
    address = reverse("parked_messages_import", args=["other"])
    admin = signed_in(Role.ADMIN)

    def post(content: bytes) -> str:
        return text_of(
            admin.post(address, {"file": SimpleUploadedFile("a.jsonl", content)}, follow=True)
        )

    assert "2 lines: 2 added, 0 already stored, 0 skipped." in post(data)
    text = post(data + b"{\n<script>")
    assert "4 lines: 0 added, 2 already stored, 2 skipped." in text
    assert "Line 3 was skipped." in text
    assert "Choose a file" in text_of(admin.post(address, follow=True))
    assert signed_in(Role.OPERATOR).post(address).status_code == 403


def test_a_form_of_export_that_there_is_none_of_is_not_found(broker: Broker) -> None:
    address = reverse("parked_messages_export", args=["test-broker"])
    assert signed_in(Role.OPERATOR).get(address, {"as": "xml"}).status_code == 404


def test_each_state_has_its_number_and_its_parked_messages(three: list[ParkedMessage]) -> None:
    states = (ParkedState.REPLAYED, ParkedState.DELAYED)
    for parked_message, state in zip(three, states, strict=False):
        change_parked_messages(
            [parked_message.pk], (ParkedState.PARKED,), state, by=None, at=parked_message.parked_at
        )
    text = page(signed_in(Role.VIEWER))
    assert re.findall(r'href="\?q=state:(\w+)"[^>]*>([^<]*)<', text) == [
        ("parked", "parked 1"),
        ("delayed", "sent to a delay 1"),
        ("replayed", "replayed 1"),
    ]
    assert shown(page(signed_in(Role.OPERATOR), q="state:replayed")) == ["first"]
    assert shown(page(signed_in(Role.OPERATOR), q="state:any")) == ["third", "second", "first"]


def test_what_is_in_a_replay_is_not_discarded_and_that_is_said(three: list[ParkedMessage]) -> None:
    first, second, _ = three
    for parked_message, state in ((first, ParkedState.REPLAYING), (second, ParkedState.DELAYED)):
        change_parked_messages(
            [parked_message.pk], (ParkedState.PARKED,), state, by=None, at=parked_message.parked_at
        )
    client = signed_in(Role.OPERATOR)
    address = reverse("parked_messages_discard", args=["test-broker"])
    chosen = {"parked_message": [parked_message.pk for parked_message in three]}
    text = text_of(client.post(address, chosen, follow=True))
    assert "1 parked message discarded." in text
    assert "2 messages are unchanged: in a replay, or in a delay" in text
    group = {"group": first.group_id, "newest": three[2].pk}
    assert "1 message is unchanged: in a replay" in text_of(
        client.post(address, group, follow=True)
    )
    states = ParkedMessage.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["replaying", "delayed", "discarded"]
