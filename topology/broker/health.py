"""Which addresses of brokers did not answer lately, in this process: those are tried last."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from topology.broker.address import Address
from topology.broker.errors import Unreachable

# Seconds for which an address that did not answer is tried after the others.
DOUBTED_SECONDS = 20.0
# Seconds for a connection, and for the first byte or a whole handshake, while other nodes are left.
HURRIED_CONNECT_SECONDS, HURRIED_SECONDS = 1.0, 1.5
Protocol = Literal["AMQP", "management"]


@dataclass(frozen=True)
class Failure:
    """Why an address did not answer, and when, in monotonic seconds.

    `is_cut_off`: it answers, and its node has no majority, while another node has: open connections
    to it are of no use either.
    """

    why: str
    at: float
    is_cut_off: bool = False


_failures: dict[str, Failure] = {}


def order_nodes(nodes: Sequence[Address], protocol: Protocol) -> Sequence[Address]:
    """The addresses in the order to try: those that did not answer lately last, the latest at the
    end.

    Another process's experience counts as older than that of this one.
    """

    def rank(node: Address) -> tuple[float, float]:
        name = node.amqp_name if protocol == "AMQP" else node.management_url
        failure = find_failure(name)
        return (failure.at if failure else 0.0, name in node.doubted)

    return sorted(nodes, key=rank) if len(nodes) > 1 else nodes


def find_failure(name: str) -> Failure | None:
    """The failure of an address that was not long ago."""
    failure = _failures.get(name)
    is_recent = failure is not None and time.monotonic() - failure.at < DOUBTED_SECONDS
    return failure if is_recent else None


def record_failure(name: str, error: Exception, *, is_cut_off: bool = False) -> None:
    _failures[name] = Failure(str(error), time.monotonic(), is_cut_off)


def is_cut_off(name: str) -> bool:
    """Whether its node lost the majority of its cluster."""
    failure = find_failure(name)
    return failure is not None and failure.is_cut_off


def record_answer(name: str) -> None:
    """An answer says nothing about a majority: the next probes do."""
    if not is_cut_off(name):
        _failures.pop(name, None)


def explain_all(failures: Collection[tuple[str, Unreachable]], protocol: Protocol) -> Unreachable:
    """The error when none answers: the only one, else a sentence with each address and its reason.

    `failures` are the addresses with their errors, in the order of the attempts.
    """
    if len(failures) == 1:
        ((_, only),) = failures
        return only
    reasons = "; ".join(f"{name}: {shorten_reason(name, str(error))}" for name, error in failures)
    kind = "AMQP" if protocol == "AMQP" else "management"
    return Unreachable(f"None of the {len(failures)} {kind} addresses answers ({reasons}).")


def shorten_reason(name: str, sentences: str) -> str:
    """What failed, without the address and without the next step."""
    first = re.split(r"\. (?=[A-Z“])", sentences)[0].rstrip(".")
    for words in (f" at {name}", f" of {name}", f" from {name}", f"{name} "):
        first = first.replace(words, " " if words.startswith(" ") else "it ")
    return re.sub(r" +", " ", first).strip().replace(" ,", ",")
