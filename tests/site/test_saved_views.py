"""The saved views of lists: of a person, or shared with everybody of a broker."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qsl

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from delayboard.models import RedactionKind, ReplayBatch, SavedView
from delayboard.models.parked_search import SearchedList
from delayboard.saved_views import SavedViewError, find_views, save_view
from tests.builders import make_broker, make_pair, make_user
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Arguments, Queue
from topology.models import Broker, RedactionRule, Role, State, Topology

NOWHERE = Queue("lost", arguments=Arguments({"x-dead-letter-exchange": "nowhere"}))


@pytest.fixture
def broker(db: None) -> Broker:
    broker = make_broker()
    know(broker, NOWHERE)
    make_pair(broker)
    Topology.objects.update(state=State.APPLIED, applied_at=timezone.now())
    parked(broker, a_message(b"{}"))
    ReplayBatch.objects.create(broker=broker, state_at=timezone.now())
    return broker


def save(client: Client, text: str, **values: str) -> str:
    """Press “Save view” on a page; where it led."""
    form = text.partition("<summary>Save view</summary>")[2].partition("</form>")[0]
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
    action = html.unescape(re.findall(r'action="([^"]*)"', form)[0])
    typed = {name: html.unescape(value) for name, value in fields.items()}
    return str(client.post(action, typed | {"name": "mine"} | values)["Location"])


@pytest.mark.parametrize(
    ("address", "asked", "saved"),
    [
        (
            "/scheduled/?broker=test-broker",
            "&destination=a+b&text=&after=x&sort=-due&columns=size",
            "&destination=a+b&sort=-due&columns=size",
        ),
        ("/findings/test-broker/", "?q=lost&severity=&from=0", "?q=lost"),
        (
            "/retrying/test-broker/",
            "?text=x&columns=delay,reason,no",
            "?text=x&columns=reason,delay",
        ),
        (
            "/dead-letters/?broker=test-broker",
            "&q=a&sort=count&columns=",
            "&q=a&sort=count&columns=",
        ),
        (
            "/dead-letters/test-broker/parked/",
            "?q=reason:x&sort=parked&columns=deaths",
            "?q=reason:x&columns=deaths&sort=parked",
        ),
        (
            "/replays/?broker=test-broker",
            "&open=1",
            "&open=1&columns=selection,broker,prepared",
        ),
    ],
)
def test_a_list_saves_filter_order_and_columns_and_leads_back_to_them(
    broker: Broker, address: str, asked: str, saved: str
) -> None:
    viewer = signed_in(Role.VIEWER)
    led_to = save(viewer, text_of(viewer.get(address + asked)))
    path, _, query = led_to.partition("?")
    wanted_path, _, wanted = (address + saved).partition("?")
    assert path == wanted_path
    assert parse_qsl(query, keep_blank_values=True) == parse_qsl(wanted, keep_blank_values=True)
    text = text_of(viewer.get(address))
    assert f'<a class="chip" href="{html.escape(led_to)}" title="Your own' in text
    current = f'<a class="chip" href="{html.escape(led_to)}" aria-current="true"'
    assert current in text_of(viewer.get(led_to))
    other = text_of(signed_in(Role.ADMIN).get(address))
    assert "Saved views" not in other
    assert 'name="delete"' not in other


def test_an_operator_shares_a_view_and_a_viewer_does_not(broker: Broker) -> None:
    address = "/scheduled/?destination=x"
    viewer, operator = signed_in(Role.VIEWER), signed_in(Role.OPERATOR)
    text = text_of(viewer.get(address))
    assert "Share with everybody" not in text
    save(viewer, text, shared="1")
    assert not SavedView.objects.exists()
    text = text_of(operator.get(address))
    assert "Share with everybody of Test broker" in text
    save(operator, text, shared="1")
    text = text_of(viewer.get("/scheduled/"))
    assert 'title="Shared. destination=x"' in text
    assert 'name="delete"' not in text
    delete = {"list": "scheduled", "delete": str(SavedView.objects.get().pk)}
    viewer.post(reverse("saved_views"), delete)
    assert SavedView.objects.exists()
    signed_in(Role.ADMIN).post(reverse("saved_views"), delete)
    assert not SavedView.objects.exists()


def test_a_view_of_all_brokers_is_its_owners_alone(broker: Broker) -> None:
    make_broker(name="Other")
    operator = signed_in(Role.OPERATOR)
    text = text_of(operator.get("/scheduled/?destination=x"))
    assert "Share with everybody" not in text
    assert save(operator, text, shared="1").startswith("/scheduled/?destination=x")
    assert not SavedView.objects.exists()
    save(operator, text)
    assert SavedView.objects.get().broker is None
    assert "Your own. destination=x" in text_of(operator.get("/scheduled/"))


@pytest.mark.both_databases
def test_the_name_of_an_own_view_is_taken_at_its_broker_only(db: None) -> None:
    """It is not listed at another one."""
    user, one, other = make_user("ada", Role.OPERATOR), make_broker(), make_broker(name="Other")

    def keep(broker: Broker | None) -> SavedView:
        kind = SearchedList.SCHEDULED
        return save_view(user, kind, broker, "mine", "text=x", "", is_shared=False)

    for broker in (one, other, None):
        keep(broker)
        with pytest.raises(SavedViewError, match="A view “mine” already exists"):
            keep(broker)
    assert len(find_views(user, SearchedList.SCHEDULED, [one])) == 2


def test_choosing_columns_goes_before_those_of_a_view(broker: Broker) -> None:
    client = signed_in(Role.VIEWER)
    text = text_of(client.get("/replays/?open=1&columns=broker"))
    assert '<input type="hidden" name="next" value="/replays/?open=1">' in text


def test_a_shared_text_is_hidden_where_a_rule_hides_content(broker: Broker) -> None:
    for name, query in (("told", "text=secret"), ("plain", "destination=x")):
        SavedView.objects.create(broker=broker, searched="scheduled", name=name, query=query)
    SavedView.objects.create(
        broker=broker, searched="dead_letters", name="died", query="q=hiddenword"
    )
    RedactionRule.objects.create(
        broker=broker, kind=RedactionKind.HEADER, pattern="x-key", least_role=Role.ADMIN
    )
    text = text_of(signed_in(Role.OPERATOR).get("/scheduled/"))
    assert ("secret" in text, "plain" in text) == (False, True)
    assert "secret" in text_of(signed_in(Role.ADMIN).get("/scheduled/"))
    assert "hiddenword" not in text_of(signed_in(Role.OPERATOR).get("/dead-letters/"))


@pytest.mark.both_databases
@pytest.mark.django_db
def test_a_row_of_the_version_before_is_a_shared_view() -> None:
    broker, person = make_broker(), make_user("ada", Role.OPERATOR)
    fields = "searched, broker_id, name, query, created_by_id, created_at"
    values = ("scheduled", broker.pk, "mine", "destination=x", person.pk, timezone.now())
    marks = ", ".join(["%s"] * len(values))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO delayboard_savedsearch ({fields}) VALUES ({marks})", values)
    row = SavedView.objects.get()
    assert (row.owner, row.display) == (None, "")


@pytest.mark.parametrize("values", [{"list": "x"}, {"list": "parked_messages", "name": "x"}])
def test_a_list_that_there_is_not_is_not_found(broker: Broker, values: dict[str, str]) -> None:
    assert signed_in(Role.OPERATOR).post(reverse("saved_views"), values).status_code == 404
