from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html import escape, unescape
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import QueryDict
from django.template import Context, Template
from django.test import Client
from django.urls import reverse

from analytics import buckets
from analytics.models import DayFigures, Run, Slo
from analytics.results import read
from analytics.results.load import replace_day
from analytics.results.period import Period
from analytics.results.section import DEFINITIONS, VIEWS, search_of
from analytics.results.slo import Attainment
from analytics.retention.rules import DELIVERED
from analytics.search.query import Condition, Pattern, Range, parse
from analytics.views import reports
from delayboard.dead_letters.search import FIELDS
from tests.analytics import result_rows
from tests.builders import make_pair
from topology.models import AuditEntry, Broker, Grant, Role, State, Topology

DAY = date(2026, 11, 20)
GROUP = {"broker": "main", "topology": "orders"}


def a_user(name: str, broker: Broker | None = None, role: Role | None = None) -> Client:
    user = User.objects.create_user(name)
    if role is not None:
        Grant.objects.create(user=user, broker=broker, role=role)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def viewer(broker: Broker) -> Client:
    return a_user("vera", broker, Role.VIEWER)


@pytest.fixture
def operator(broker: Broker) -> Client:
    return a_user("oskar", broker, Role.OPERATOR)


def a_computed_day(*groups: dict[str, str], **changes: Any) -> Run:
    now = datetime.now(UTC)
    result_rows.days([DAY], groups or [GROUP], **changes)
    return Run.objects.create(
        day=DAY, state="done", started_at=now, finished_at=now, lines=7, malformed=1
    )


def page(client: Client, **query: str) -> str:
    answer = client.get(reverse("analytics:reports"), query)
    assert answer.status_code == 200
    return answer.content.decode()


def of_the_day(client: Client, **query: str) -> str:
    return page(client, **{"from": "2026-11-20", "to": "2026-11-20"} | query)


def of_all_views(client: Client) -> str:
    return "".join(of_the_day(client, view=view) for view in VIEWS)


def test_an_anonymous_visitor_is_sent_to_the_login(client: Client, broker: Broker) -> None:
    assert client.get(reverse("analytics:reports")).status_code == 302


def test_without_any_run_the_page_says_how_to_get_one(viewer: Client) -> None:
    text = of_the_day(viewer)
    assert "No figures for this range" in text
    assert "manage.py run_nightly --date 2026-11-20" in text
    assert "plotly" not in text


def test_a_day_is_shown_with_its_charts_and_the_same_numbers_as_tables(viewer: Client) -> None:
    a_computed_day()
    text = of_all_views(viewer)
    drawn = {"lateness", "delays", "survival", "rates", "dead_letters"}
    assert set(re.findall(r'data-figure="figure-(\w+)"', text)) == drawn
    assert text.count("<details open><summary>Table") == 1
    scripts = re.findall(r'<script id="([\w-]+)" type="application/json">(.*?)</script>', text)
    figures = {name: json.loads(body) for name, body in scripts}
    total = read.report(Period("custom", DAY, DAY), Broker.objects.all()).total
    failing = [step.failing for step in total.survival()]
    assert figures["figure-survival"]["data"][0]["y"] == [1.0, *failing]
    assert "7 lines" in text
    assert "was due without a recorded end." in text
    assert 'href="/scheduled/?text=lost-2026-11-20">lost-2026-11-20</a></th>' in text
    assert 'href="?from=2026-11-20&amp;to=2026-11-20">2026-11-20</a></th>' in text


def test_every_table_has_its_definition_and_a_csv_file(viewer: Client) -> None:
    a_computed_day()
    text = of_all_views(viewer)
    links = re.findall(r'href="(/reports/([\w]+)\.csv[^"]*)"', text)
    assert len(links) == 14
    for link, key in links:
        assert escape(DEFINITIONS[key]) in text
        answer = viewer.get(unescape(link))
        assert answer["Content-Type"] == "text/csv; charset=utf-8"
        head, *rows = csv.reader(StringIO(answer.content.decode()))
        assert rows
        assert {len(row) for row in rows} == {len(head)}
    ledger = viewer.get("/reports/ledger.csv?from=2026-11-20").content.decode().splitlines()
    head, *_, total = csv.reader(ledger)
    fates = ["Delivered", "Died", "Cancelled", "Moved", "Waiting", "Not observed"]
    assert head[:8] == ["Day", "Scheduled", *fates]
    scheduled, *counts = map(int, total[1:])
    assert scheduled == sum(counts)


def test_tables_of_dead_letters_and_causes_link_to_the_parked_messages(viewer: Client) -> None:
    a_computed_day(GROUP)
    text = of_all_views(viewer)
    found = re.findall(r'<th scope="row"><a href="([^"]+/parked/[^"]+)">', text)
    links = [unescape(link) for link in found]
    queries = [QueryDict(link.partition("?")[2])["q"] for link in links]
    day = "parked:>=2026-11-20 parked:<2026-11-21 state:any"
    assert queries.count(f'reason:"rejected" {day}') == 2
    assert any(query.startswith("died:") for query in queries)
    for query in queries:
        assert parse(query, datetime.now(UTC), FIELDS).chosen == {"state": "any"}
    assert viewer.get(links[0]).status_code == 200


def test_a_group_of_retries_has_its_own_survival_and_a_rate_where_messages_are_known(
    viewer: Client,
) -> None:
    """Of 400 messages 250 leave attempt 1, 90 attempt 2, 5 attempt 3; 55 end after 4."""
    a_computed_day(GROUP)
    answer = viewer.get("/reports/groups.csv?from=2026-11-20").content.decode()
    rows = {row["Property"]: row for row in csv.DictReader(StringIO(answer))}
    assert list(rows) == ["queue", "reason", "exception", "routing key", "publisher", "version"]
    for row in rows.values():
        outcomes = ("Recovered", "Left, outcome unknown", "Given up")
        assert [row[one] for one in ("Retried", *outcomes)] == ["400", "0", "345", "55"]
        shares = [float(row[f"Retried or given up after {number}"]) for number in (1, 3)]
        assert shares == pytest.approx([150 / 400, 55 / 400])
        assert float(row["Attempts per message"]) == pytest.approx(665 / 400)
    assert float(rows["version"]["First-time failures"]) == pytest.approx(400 / 9000)
    assert rows["exception"]["First-time failures"] == ""


def test_dead_letters_by_reason_and_by_origin_have_the_same_sums(viewer: Client) -> None:
    a_computed_day(GROUP)
    sums = []
    for key in ("dead_letters", "handled"):
        answer = viewer.get(f"/reports/{key}.csv?from=2026-11-20").content.decode()
        rows = list(csv.DictReader(StringIO(answer)))
        names = ("Arrived", "Parked", "Replayed", "Discarded")
        sums.append([sum(int(row[name]) for row in rows) for name in names])
    assert sums[0] == sums[1] == [57, 57, 57, 0]


def test_a_text_in_a_link_is_quoted_for_thesearch_of() -> None:
    text = 'a"b\\c* d:e'
    found = parse(search_of(DAY, DAY, exception=text), datetime.now(UTC), FIELDS).conditions
    assert found[0] == Condition("exception", Pattern((text,)))
    assert found[1:] == (
        Condition("parked", Range(datetime(2026, 11, 20, tzinfo=UTC))),
        Condition("parked", Range(None, datetime(2026, 11, 21, tzinfo=UTC))),
    )


def test_a_filter_that_matches_nothing_is_not_a_missing_run(viewer: Client, broker: Broker) -> None:
    a_computed_day()
    pair = make_pair(broker, name="other")
    for query in ({"topology": "nope"}, {"topology": pair.slug, "pattern": "delay_levels"}):
        text = of_the_day(viewer, **query)
        assert "No figures match the filter on these days." in text
        assert "run_nightly" not in text
    later = page(viewer, **{"from": "2999-01-01", "to": "2999-01-02"})
    assert "These days are in the future." in later


def test_the_form_names_a_usual_range_and_sends_no_empty_filter(viewer: Client) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    week = {"from": str(yesterday - timedelta(days=6)), "to": str(yesterday)}
    query = {**week, "topology": "orders", "pattern": "", "range": "custom"}
    answer = viewer.get("/reports/", query)
    assert (answer.status_code, answer["Location"]) == (302, "/reports/?topology=orders&range=7")
    filtered = viewer.get(answer["Location"]).content.decode()
    assert '<details class="more-filters" open>' in filtered
    assert '<details class="more-filters">' in page(viewer)
    # A day alone is a range, and no day is a sentence.
    alone = viewer.get("/reports/", {"from": str(yesterday), "range": "custom"})
    assert alone["Location"] == "/reports/?range=yesterday"
    for odd in ({"range": "custom"}, {"range": "custom", "from": "", "to": ""}):
        assert "is not a date" in viewer.get("/reports/", odd).content.decode()
    fixed = {"from": "2026-11-18", "to": "2026-11-20", "range": "custom"}
    assert viewer.get("/reports/", fixed).status_code == 200


def test_a_row_with_no_messages_has_no_link(viewer: Client) -> None:
    a_computed_day()
    rows = of_all_views(viewer).split("<tr>")
    empty = [row for row in rows if re.search(r'<td class="number">0</td></tr>', row)]
    assert empty
    assert not [row for row in empty if "kind=measured" in row]


def test_a_csv_of_a_bad_range_or_an_unknown_table_is_refused(viewer: Client) -> None:
    assert viewer.get("/reports/ledger.csv?range=soon").status_code == 400
    assert viewer.get("/reports/nothing.csv").status_code == 404


def test_nothing_on_the_page_is_inline(viewer: Client) -> None:
    a_computed_day()
    text = of_the_day(viewer)
    assert not re.search(r"<script(?![^>]*(src=|application/json))", text)
    assert " style=" not in text
    assert not re.search(r"\son\w+=", text)


def test_a_user_without_a_grant_sees_no_figures(broker: Broker) -> None:
    a_computed_day()
    text = of_the_day(a_user("nobody"))
    assert "orders" not in text
    assert "have no recorded message" in text


def test_the_filters_narrow_to_a_broker_a_topology_a_pattern_and_a_destination(
    broker: Broker,
) -> None:
    other = Broker.objects.create(slug="other", name="Other", amqp_addresses="127.0.0.1")
    seen_by_all = a_user("vera", None, Role.VIEWER)
    Topology.objects.create(slug="orders", broker=broker, kind="retry_pair", name="o", params={})
    mails = {"broker": "main", "topology": "mails"}
    a_computed_day(GROUP, mails, {"broker": "other", "topology": "bills"})

    def rows(**query: str) -> list[str]:
        return re.findall(r'topology=\w+">(\w+)</a></th>', of_the_day(seen_by_all, **query))

    # Where a name is unique, it is what people read.
    assert sorted(rows()) == ["bills", "mails", "o"]
    assert sorted(rows(broker="main")) == ["mails", "o"]
    assert rows(broker=other.slug) == ["bills"]
    assert rows(topology="mails") == ["mails"]
    assert rows(topology="o") == rows(topology="orders") == ["o"]
    assert 'name="topology" id="topology" value="o"' in of_the_day(seen_by_all, topology="orders")
    assert rows(pattern="retry_pair") == ["o"]
    Topology.objects.create(slug="new", broker=broker, kind="retry_pair", name="o", params={})
    assert rows(topology="orders") == ["orders"]
    assert len(rows(destination="work")) == 3
    assert rows(destination="none") == []
    of_destination = of_the_day(seen_by_all, destination="work")
    assert "Messages still failing" not in of_destination
    assert "first-time failures" not in of_destination
    assert "parked dead letters" not in of_the_day(seen_by_all, topology="mails")
    assert "Lateness by requested delay" in of_destination


def test_a_range_is_compared_with_the_range_before_and_keeps_its_filters(viewer: Client) -> None:
    result_rows.days([DAY - timedelta(days=1)], [GROUP], failed=0.01)
    a_computed_day(failed=0.05)
    text = of_the_day(viewer, topology="orders")
    assert "points (worse)" in text
    assert "?topology=orders&amp;range=28" in text


def test_an_operator_sets_and_deletes_a_target_and_a_viewer_only_sees_it(
    operator: Client, viewer: Client, broker: Broker
) -> None:
    Topology.objects.create(slug="orders", broker=broker, kind="retry_pair", name="o", params={})
    a_computed_day()
    assert "has no target" in of_the_day(operator, topology="orders")
    values = {"topology": "orders", "percent": "99", "within_ms": "10"}
    address = reverse("analytics:slo")
    assert viewer.post(address, values).status_code == 403
    refused = operator.post(address, values | {"percent": "100"}, follow=True)
    assert "The target is not valid" in refused.content.decode()
    assert not Slo.objects.exists()
    back = f"{reverse('analytics:reports')}?topology=orders&range=7"
    assert operator.post(address, values | {"next": back}).headers["Location"] == back
    csv_file = operator.get(reverse("analytics:report_table", args=["slo"]), {"topology": "orders"})
    assert '"Target","Topology"' in csv_file.content.decode()
    text = of_the_day(viewer, topology="orders")
    assert "99 % within 10ms of due" in text
    assert "Error budget (28 days)" in text
    assert "Save target" not in text
    assert re.search(r"<dt>Attainment</dt><dd>[\d.]+ % \(missed\)</dd>", text)
    assert AuditEntry.objects.filter(action="SLO changed").count() == 1
    operator.post(address, values | {"percent": ""})
    assert not Slo.objects.exists()


def test_the_table_of_topologies_has_their_targets_and_who_missed_them(
    viewer: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The messages of DAY are kept, however long ago it is.
    monkeypatch.setattr(reports, "DELIVERED", replace(DELIVERED, keeps=36_500))
    names = ("orders", "mails", "bills")
    a_computed_day(*({"broker": "main", "topology": f"s-{name}"} for name in names))
    made = {
        name: Topology.objects.create(
            slug=f"s-{name}", broker=broker, kind="retry_pair", name=name, params={}
        )
        for name in names
    }
    Slo.objects.create(topology=made["orders"], percent=99, within_ms=10)
    Slo.objects.create(topology=made["mails"], percent=90, within_ms=1000)

    def rows() -> dict[str, list[str]]:
        address = reverse("analytics:report_table", args=["topologies"])
        answer = viewer.get(address, {"from": "2026-11-20", "to": "2026-11-20"})
        head, *found = csv.reader(StringIO(answer.content.decode()))
        places = [head.index(name) for name in ("Target", "Attainment", "Result")]
        return {row[0]: [row[place] for place in places] for row in found}

    found = rows()
    target, attained, result = found["orders"]
    assert (target, result) == ("99 % within 10ms of due", "missed")
    figures = read.budgets_of([made["orders"]], DAY)["s-orders"]
    assert float(attained) == buckets.within(figures.late, 10) / figures.measured
    assert found["mails"] == ["90 % within 1s of due", "1.0", "met"]
    assert found["bills"] == ["", "", ""]
    text = of_the_day(viewer)
    assert text.count('<span class="state state-error">missed</span>') == 1
    assert re.search(r'<a href="\?[^"]*topology=orders">orders</a>', text)
    # The missed target leads to its cause, and from there to the late messages.
    (cause,) = re.findall(r'<a href="(\?[^"]*)#slo">View cause</a>', text)
    shown = viewer.get(reverse("analytics:reports") + unescape(cause)).content.decode()
    assert "<strong>Missed target.</strong>" in shown
    assert "measured deliveries were later than 10ms." in shown
    late = [unescape(link) for link in re.findall(r'<a href="([^"]*)">View late messages', shown)]
    assert late
    for link in late:
        assert "lateness from 10ms" in viewer.get(link).content.decode()


@pytest.mark.parametrize(
    ("measured", "within", "percent", "result"),
    [
        *((1000, 990, 99, "met"), (1000, 989, 99, "missed"), (100_000, 99_999, 99.999, "met")),
        *((0, 0, 99, None), (10, 10, 99.9, "met")),
    ],
)
def test_a_target_is_met_at_its_share(
    measured: int, within: int, percent: float, result: str | None
) -> None:
    assert Attainment(measured, within, 1 - percent / 100).result == result


def slo_line(topology: Topology) -> str:
    return Template("{% slo_line topology %}").render(Context({"topology": topology}))


def test_a_topology_shows_its_target_and_the_budget_of_28_days(topology: Topology) -> None:
    assert slo_line(topology).strip() == ""
    topology.state = State.APPLIED
    assert f"?topology={topology.slug}&amp;range=28#slo" in slo_line(topology)
    Slo.objects.create(topology=topology, percent=90, within_ms=10)
    assert "no delivery was measured in 28 days" in slo_line(topology)
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    result_rows.days([yesterday, yesterday - timedelta(days=27)], [GROUP])
    before = slo_line(topology)
    figures = read.budgets_of([topology], read.last_day())[topology.slug]
    share = buckets.within(figures.late, 10) / figures.measured
    assert f"attainment {share * 100:.1f} %" in before
    assert f"burn rate {(1 - share) / 0.1:.2f}" in before
    assert "Budget used up" not in before
    result_rows.days([yesterday - timedelta(days=28)], [GROUP], late_ms=5000.0)
    assert slo_line(topology) == before
    Slo.objects.update(percent=99)
    assert "Budget used up" in slo_line(topology)
    assert re.search(r"error budget used up \(\d{3,} % used\)", slo_line(topology))


def test_ninety_days_of_two_hundred_topologies_are_few_queries_and_a_small_page(
    viewer: Client, broker: Broker, django_assert_max_num_queries: Any
) -> None:
    replace_day(DAY, result_rows.a_result(DAY, [GROUP]))
    of_all, of_one = (
        DayFigures.objects.get(topology=name, destination="") for name in ("", "orders")
    )
    DayFigures.objects.all().delete()
    names = [field.attname for field in DayFigures._meta.fields if field.name not in ("id", "day")]
    DayFigures.objects.bulk_create(
        DayFigures(
            day=DAY - timedelta(days=n),
            **{name: getattr(row, name) for name in names}
            # Of the others the page reads only sums, and so much text would take long to write.
            | {"topology": topology, "figures": row.figures if topology < "topology-002" else "{}"},
        )
        for n in range(90)
        for row, topology in [(of_all, ""), *((of_one, f"topology-{n:03}") for n in range(200))]
    )
    made = Topology.objects.bulk_create(
        Topology(broker=broker, slug=name, name=name, kind="retry_pair", params={})
        for name in (f"topology-{n:03}" for n in range(200))
    )
    Slo.objects.bulk_create(Slo(topology=one, percent=99, within_ms=1000) for one in made)
    query = {"range": "custom", "from": f"{DAY - timedelta(days=89)}", "to": f"{DAY}"}
    with django_assert_max_num_queries(24):
        answer = viewer.get(reverse("analytics:reports"), query)
    assert len(answer.content) < 400_000
    report = answer.context["report"]
    assert len(report.days) == 90
    assert len(report.topologies) == read.MOST_TOPOLOGIES
    assert len(report.suspects) <= len(read.SORTS) * read.SUSPECTS


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("running", "of <span>7</span> steps done"),
        ("requested", "computes 2026-11-20 next"),
        ("failed", "the disk is full"),
        ("no_data", "the disk is full"),
    ],
)
def test_the_state_of_the_run_is_told(viewer: Client, state: str, words: str) -> None:
    Run.objects.create(
        day=DAY,
        state=state,
        started_at=datetime.now(UTC),
        finished_at=datetime.now(UTC),
        steps_done=2,
        steps=7,
        error="the disk is full",
    )
    assert words in of_the_day(viewer)


def test_a_bad_day_is_refused_with_a_sentence(viewer: Client) -> None:
    assert "“soon” is not a date" in of_the_day(viewer, **{"from": "soon"})
    assert "is too long ago" in of_the_day(viewer, **{"from": "0001-01-01", "to": "0001-01-01"})


def test_an_operator_asks_for_a_day_and_it_is_audited(operator: Client) -> None:
    assert "Compute day" in of_the_day(operator)
    answer = operator.post(reverse("analytics:run"), {"day": "2026-11-20"}, follow=True)
    assert "computes 2026-11-20 next" in answer.content.decode()
    assert Run.objects.get().state == "requested"
    entry = AuditEntry.objects.get(action="nightly run requested")
    assert (entry.username, entry.what, entry.outcome) == ("oskar", "2026-11-20", "done")


def test_a_viewer_has_no_button_and_may_not_ask(viewer: Client) -> None:
    assert "Compute day" not in page(viewer)
    assert viewer.post(reverse("analytics:run"), {"day": "2026-11-20"}).status_code == 403
    assert not Run.objects.exists()


def test_asking_by_a_link_is_not_possible(operator: Client) -> None:
    assert operator.get(reverse("analytics:run")).status_code == 405


@pytest.mark.parametrize("day", ["", "soon", "2999-01-01"])
def test_asking_for_no_day_or_a_future_one_runs_nothing_of_the_kind(
    operator: Client, day: str
) -> None:
    answer = operator.post(reverse("analytics:run"), {"day": day}, follow=True)
    assert answer.status_code == 200
    assert not Run.objects.exists()
