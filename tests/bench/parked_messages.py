"""A million parked messages: milliseconds of server time for a page of them."""

from __future__ import annotations

from functools import partial

from tests.bench.databases import measure_on_each

measure = partial(measure_on_each, "tests.bench.parked_message_pages")
