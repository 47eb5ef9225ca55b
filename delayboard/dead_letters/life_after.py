"""What came of a parked message: discarded, restored, replayed, parked again."""

from __future__ import annotations

from datetime import UTC, datetime

from django.urls import reverse

from delayboard.dead_letters.life import Step
from delayboard.models import DeadLetter, LetterState, ReplayItem

MOST = 10
_LAST = datetime.max.replace(tzinfo=UTC)


def after(letter: DeadLetter) -> tuple[Step, ...]:
    """The steps since it was parked, in the order of their times."""
    steps = [*_states(letter), *_replays(letter), *_equals(letter)]
    parked, *rest = steps
    return (parked, *sorted(rest, key=lambda step: step.at or _LAST))


def _states(letter: DeadLetter) -> list[Step]:
    by = f" By {letter.state_by.get_username()}." if letter.state_by else ""
    told = "Its row stands in the journal, and it is no longer in the queue."
    steps = [Step("now", "parked", letter.queue, letter.parked_at, told)]
    if letter.state == LetterState.DISCARDED:
        told = f"It can be restored until its time in the journal ends.{by}"
        steps.append(Step("end", "discarded", at=letter.state_at, told=told))
    elif letter.state_at != letter.parked_at:
        steps.append(Step("now", "restored", at=letter.state_at, told=by.strip()))
    return steps


def _replays(letter: DeadLetter) -> list[Step]:
    """Of messages of this content: a replay knows them by nothing else."""
    items = ReplayItem.objects.filter(
        content_id=letter.content_id,
        batch__broker=letter.broker,
        batch__queue=letter.queue,
        batch__work__isnull=False,
    )
    return [
        Step(
            "now",
            f"replayed: {item.get_state_display()}",
            item.target_exchange or item.target_key,
            item.ended_at,
            "A message of this content, in its queue.",
            is_inferred=True,
            link=reverse("replay_batch", args=[item.batch_id]),
        )
        for item in items.order_by("-pk")[:MOST]
    ]


def _equals(letter: DeadLetter) -> list[Step]:
    """Others of equal content from the same queue; two equal ones can both be real."""
    others = DeadLetter.objects.filter(
        broker=letter.broker, queue=letter.queue, content_id=letter.content_id
    ).exclude(pk=letter.pk)
    return [
        Step("now", *_equal(letter, other), is_inferred=True, link=_address(letter, other))
        for other in others.order_by("-pk")[:MOST]
    ]


def _equal(letter: DeadLetter, other: DeadLetter) -> tuple[str, str, datetime, str]:
    if letter.repeat_of_id == other.pk or other.repeat_of_id == letter.pk:
        told = "The same message may stand here twice: a crash left open which is so."
    else:
        told = "Equal in properties and body: it died again, or there were two."
    return f"parked as {other.pk} with the same content", other.queue, other.parked_at, told


def _address(letter: DeadLetter, other: DeadLetter) -> str:
    return reverse("letter", args=[letter.broker.slug, other.pk])
