from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.template import Context, Template
from django.test import RequestFactory, override_settings

from delayboard.templatetags.delayboard import (
    delay,
    exact,
    number,
    relative,
    relative_text,
    short_id,
)
from topology.content.text import format_bytes

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(0), "now"),
        (timedelta(seconds=5.7), "5s ago"),
        (timedelta(seconds=59), "59s ago"),
        (timedelta(minutes=3, seconds=59), "3m ago"),
        (timedelta(hours=1, minutes=20), "1h 20m ago"),
        (timedelta(hours=2), "2h ago"),
        (timedelta(days=3, hours=4, minutes=5), "3d 4h ago"),
        (timedelta(minutes=-4, seconds=-12), "in 4m"),
        (timedelta(days=-400), "in 1y 35d"),
    ],
)
def test_a_moment_is_told_by_its_two_largest_units(ago: timedelta, text: str) -> None:
    assert relative_text(NOW - ago, NOW) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a81f3c02-4f6c-4d0b-8c1f", "a81f3c02"),
        ("order-4711", "order-4711"),
        ("one of many words with spaces", "one of many words with spaces"),
        ("", ""),
    ],
)
def test_a_long_id_is_told_by_its_first_eight_characters(text: str, shown: str) -> None:
    assert short_id(text) == shown


def test_a_relative_time_carries_its_exact_moment() -> None:
    html = relative(NOW)
    assert '<time datetime="2026-03-01T12:00:00+00:00"' in html
    assert 'title="2026-03-01 12:00:00 UTC"' in html
    assert " data-relative>" in html
    assert html.endswith(" ago</time>") or html.startswith("<time")


def test_an_exact_time_does_not_tick() -> None:
    assert "data-relative" not in exact(NOW)
    assert exact(NOW).endswith(">2026-03-01 12:00:00</time>")


@override_settings(TIME_ZONE="Europe/Vienna")
def test_exact_times_are_told_in_the_installations_zone() -> None:
    assert exact(NOW).endswith(">2026-03-01 13:00:00</time>")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1300, "1.3 kB"),
        (9950, "10 kB"),
        (35_100, "35 kB"),
        (999_600, "1.0 MB"),
        (16_777_216, "17 MB"),
        (5_000_000_000_000_000, "5000 TB"),
    ],
)
def test_sizes_have_a_unit_and_few_digits(size: int, text: str) -> None:
    assert format_bytes(size).replace("\u00a0", " ") == text


def test_what_is_unknown_is_a_dash() -> None:
    assert {delay(None), number(None), format_bytes(None), relative(None), exact(None)} == {"–"}


def test_delays_and_counts_are_written_as_everywhere_else() -> None:
    assert delay(timedelta(minutes=90)) == "1h 30m"
    assert delay(timedelta(seconds=131_072)) == '<span title="1d 12h 24m 32s">1d 12h</span>'
    assert number(12345) == "12\u202f345"


def render(source: str, url: str) -> str:
    request = RequestFactory().get(url)
    return Template(source).render(Context({"request": request}))


def test_one_parameter_of_the_address_is_changed_and_the_others_stay() -> None:
    url = "/publish/?broker=a%26b&state=done&state=failed&after=9"
    assert render("{% query after=None state='open' %}", url) == "?broker=a%26b&amp;state=open"
    assert render("{% query page=2 after='' %}", "/publish/?after=9") == "?page=2"
