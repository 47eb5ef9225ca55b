"""Which messages of a peek wait behind one with a longer TTL."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayboard.dead_letters.queues.mixed_ttls import find_blocked
from tests.topology.builders import a_queue
from topology.message import Message, Properties

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("ttl", "expirations", "number", "words", "lasts"),
    [
        (None, ["1000", "3600000", "1000", "2000", "3600000"], 2, "The longest TTL is 1h", HOUR),
        (None, [None, "1000"], 1, "no TTL", DAY),
        # What RabbitMQ would refuse counts as no TTL.
        (None, ["soon", "1000"], 1, "no TTL", DAY),
        (1000, ["3600000", None, "1000"], 0, "", SECOND),
        (None, ["1000", "1000", "3600000"], 0, "", HOUR),
        (None, [], 0, "", timedelta(0)),
    ],
)
def test_messages_behind_one_with_a_longer_ttl_are_counted(
    ttl: int | None,
    expirations: list[str | None],
    number: int,
    words: str,
    lasts: timedelta,
) -> None:
    queue = a_queue("hold", ttl=ttl) if ttl else a_queue("hold")
    report, left = find_blocked(
        queue, [Message("", "hold", Properties(expiration=one), b"") for one in expirations], 0
    )
    assert left == lasts
    assert (report.number if report else 0) == number
    assert words in (report.sentence if report else "")


def test_a_queue_with_priorities_has_an_order_of_its_own() -> None:
    queue = a_queue("hold", x_max_priority=5)
    messages = [Message("", "hold", Properties(expiration=one), b"") for one in ("9", "1")]
    assert find_blocked(queue, messages, 0)[0] is None


def test_what_left_during_the_peek_was_late() -> None:
    (report, _) = find_blocked(
        a_queue("hold"), [Message("", "hold", Properties(expiration="3600000"), b"")], 7
    )
    assert report is not None
    assert report.number == 7
    assert report.sentence == (
        "7 of the first 8 messages in “hold” wait behind a message with a longer TTL. The longest "
        "TTL is 1h. 7 of them had expired, and RabbitMQ removed them during the peek."
    )
