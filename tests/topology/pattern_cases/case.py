"""What a pattern needs for the laws, and values that several patterns take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from topology.definitions import MAXIMUM_TTL_MS, Definitions
from topology.patterns.names import name_problem
from topology.patterns.queue_types import QUEUE_TYPES
from topology.patterns.retry_pair import params as retry_pair_params

parked_messages = st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])
names = st.text(parked_messages, min_size=1, max_size=retry_pair_params.MAXIMUM_NAME_BYTES).filter(
    lambda name: not name_problem(name, retry_pair_params.MAXIMUM_NAME_BYTES)
)

routing_keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=255).filter(
    lambda key: len(key.encode()) <= 255
)

queue_types = st.sampled_from(list(QUEUE_TYPES))
delays = st.integers(1, MAXIMUM_TTL_MS).map(lambda ms: timedelta(milliseconds=ms))


@dataclass(frozen=True)
class Case:
    """What a pattern needs for the laws.

    Its parameters, texts that it refuses, what stands beside it and is none of it, and delays
    and targets to try where it leaves them open.
    """

    params: st.SearchStrategy[Any]
    refused: tuple[tuple[dict[str, str], str, str], ...]
    beside: Callable[[Any], Definitions] = lambda params: Definitions()
    delays: Callable[[Any], list[timedelta]] = lambda params: []
    targets: tuple[str, ...] = ()
