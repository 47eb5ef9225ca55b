"""The cause of a dead letter's death, which decides its group; pure."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from functools import lru_cache

from analytics.events import clean
from delayboard.dead_letters.parked.causes import (
    exception_message_of,
    exception_of,
    message_type_of,
    origin_of,
)
from delayboard.dead_letters.parked.placeholders import put_placeholders
from topology.deaths import History
from topology.message import Message

LONGEST = 255
# No word of the broker's: its consumer failed and published it to an error queue itself.
REPUBLISHED = "republished"


@dataclass(frozen=True)
class Failure:
    """Its first failure: the queue, the reason, and the exchange and key of its publish.

    `exception`, `message_type` and `exception_message` come from headers that libraries write.
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


def failure_of(message: Message, history: History, queue: str) -> Failure:
    """Of the first death that was no expiry, else what its consumer wrote when it published it on
    (the reason is REPUBLISHED), else of the first expiry. The message is in `queue`."""
    exception, kind = exception_of(message.headers), message_type_of(message)
    message_text = put_placeholders(clean(exception_message_of(message.headers)))
    death = history.first_failure
    origin = origin_of(message.headers) if death is None else None
    has_place = death is not None or (origin is not None and origin.queue != "")
    parked_from = "" if has_place else fit_column(queue)
    causes = (fit_column(exception), fit_column(kind), message_text, parked_from)
    if origin is not None:
        place = (fit_column(origin.queue), REPUBLISHED, fit_column(origin.exchange))
        return _failure(*place, put_placeholders(fit_column(origin.routing_key)), *causes)
    death = death or next(iter(history.deaths), None)
    if death is None:
        return _failure("", "", "", "", *causes)
    place = (fit_column(death.queue), fit_column(death.reason), fit_column(death.exchange))
    return _failure(*place, put_placeholders(fit_column(death.routing_key)), *causes)


def fit_column(text: str) -> str:
    """A broker's text as a column holds it."""
    cleaned = clean(text)
    return cleaned if len(cleaned) <= LONGEST else cleaned[:LONGEST]
