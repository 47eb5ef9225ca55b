"""The cause of a dead letter's death, which decides its group; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache

from analytics.events import clean
from delayboard.dead_letters.parked.placeholders import put_placeholders
from topology.clients.conventions import Convention
from topology.clients.describe import REPUBLISHED, Description, describe_message
from topology.clients.forms import name_of_type
from topology.deaths import History
from topology.message import Message

LONGEST = 255


@dataclass(frozen=True)
class Failure:
    """Its first failure: the queue, the reason, and the exchange and key of its publish.

    `exception`, `message_type` and `exception_message` are what its client library wrote.
    All are texts that a database can store, at most 255 characters, "" when unknown.
    `routing_key` and `exception_message` have placeholders for ids (`placeholders.RULES`).
    `parked_from` is the queue of the dead letter where nothing records in which queue it failed,
    else "": an exchange and a key, or an expiry in a delay, can be those of two applications.
    """

    died_in: str = ""
    reason: str = ""
    exchange: str = ""
    routing_key: str = ""
    exception: str = ""
    message_type: str = ""
    exception_message: str = ""
    parked_from: str = ""

    @property
    def fingerprint(self) -> str:
        """32 hex digits, the same for the same failure."""
        sentence = "\x00".join(astuple(self))
        return hashlib.sha256(sentence.encode()).hexdigest()[:32]


# Many died of the same, and one that is known is found faster than another is made.
_failure = lru_cache(maxsize=256)(Failure)


def failure_of(
    message: Message, history: History, queue: str, own: Sequence[Convention] = ()
) -> Failure:
    """Of the first death that was no expiry, else what its consumer wrote when it published it on
    (the reason is REPUBLISHED), else of the first expiry.

    The message is in `queue`; `own` are the client conventions of its broker.
    """
    read = describe_message(message, own) or Description("")
    death = history.first_failure
    is_republished = death is None and read.is_of_failure
    parked_from = "" if death is not None or (is_republished and read.queue) else fit_column(queue)
    causes = (
        fit_column(read.exception_type or ""),
        # Headers come before the property `type`, which everybody uses differently.
        fit_column(read.message_type or name_of_type(message.properties.type or "")),
        put_placeholders(clean(read.exception_message or "")),
        parked_from,
    )
    if is_republished:
        place = (fit_column(read.queue or ""), REPUBLISHED, fit_column(read.exchange or ""))
        return _failure(*place, put_placeholders(fit_column(read.routing_key or "")), *causes)
    death = death or next(iter(history.deaths), None)
    if death is None:
        return _failure("", "", "", "", *causes)
    place = (fit_column(death.queue), fit_column(death.reason), fit_column(death.exchange))
    return _failure(*place, put_placeholders(fit_column(death.routing_key)), *causes)


def fit_column(text: str) -> str:
    """A broker's text as a column holds it."""
    cleaned = clean(text)
    return cleaned if len(cleaned) <= LONGEST else cleaned[:LONGEST]
