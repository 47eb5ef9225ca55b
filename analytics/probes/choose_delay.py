"""Which delay a probe has: one that messages had lately, else one on offer."""

from __future__ import annotations

import random
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from analytics.models import ScheduledMessage
from topology.delays import milliseconds
from topology.models import Topology
from topology.patterns.pattern import ParamsError, Pattern

# Newest messages that are read to see which delays are in use.
NEWEST = 500
# A longer one would say nothing for too long, and would hold up disabling the probes.
LONGEST = timedelta(hours=1)
# Where any delay can be had and none was seen.
USUAL = tuple(timedelta(seconds=seconds) for seconds in (1, 5, 10, 30, 60, 300))


def choose_delay(topology: Topology) -> timedelta:
    """A random delay for the next probe."""
    return random.choice(probe_delays(topology.pattern, topology.parsed, _seen(topology)))


def probe_delays(pattern: Pattern, params: Any, seen: Collection[timedelta]) -> list[timedelta]:
    """The delays to choose from, the shortest first: never empty.

    Those seen, as the pattern really gives them; else those on offer, else usual ones. At most an
    hour, unless only longer ones are on offer: then the shortest of them.
    """
    offered = pattern.delays(params)
    known = [_given(pattern, params, delay) for delay in seen]
    wanted = {delay for delay in known if delay and (not offered or delay in offered)}
    usable = {delay for delay in wanted if delay <= LONGEST}
    usable = usable or {delay for delay in offered if timedelta(0) < delay <= LONGEST}
    if not usable and not offered:
        usable = {delay for one in USUAL if (delay := _given(pattern, params, one))}
    return sorted(usable) or [min(delay for delay in offered if delay)]


def _given(pattern: Pattern, params: Any, delay: timedelta) -> timedelta | None:
    """The delay really given in whole milliseconds; None for one that cannot be had."""
    try:
        return pattern.achievable(params, timedelta(milliseconds=milliseconds(delay)))
    except ParamsError:
        return None


def _seen(topology: Topology) -> set[timedelta]:
    rows = ScheduledMessage.objects.filter(topology=topology, entered_at__isnull=False)
    return set(rows.order_by("-pk").values_list("requested_delay", flat=True)[:NEWEST])
