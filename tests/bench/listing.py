"""The list of what waits on a million open rows: milliseconds of server time for a page."""

from __future__ import annotations

from functools import partial

from tests.bench.databases import measure_on_each

measure = partial(measure_on_each, "tests.bench.pages")
