"""One message of a group to look at: the beginning of its body, as far as rules let it be seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from django.db.models.functions import Substr

from delayboard.dead_letters.message.presentation import Shown, show_whole
from delayboard.dead_letters.queues.peek import number
from delayboard.models import Body, ParkedMessage
from topology.redaction import MASKED_BYTES, Redaction


@dataclass(frozen=True)
class Example:
    """`shown` is made of the body's first bytes alone; `row.size` is the size of all of it."""

    row: ParkedMessage
    shown: Shown


def example(key: int, rules: Redaction) -> Example | None:
    """The message with this id; None when it was deleted. Never reads a whole long body."""
    # One more than rules look into: what is longer is hidden whole, as everywhere.
    begun = Substr("data", 1, MASKED_BYTES + 1)
    row = ParkedMessage.objects.filter(pk=key).first()
    if row is None:
        return None
    data = Body.objects.filter(pk=row.body_id).values_list(begun, flat=True).first()
    message = replace(row.without_body, body=bytes(data or b""))
    (parked_message,) = number([message])
    return Example(row, show_whole(parked_message, redaction=rules))
