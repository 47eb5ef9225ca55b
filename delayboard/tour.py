"""The tour: six pages, each with a sentence; a session remembers the step until it is left."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

KEY = "tour"


@dataclass(frozen=True)
class Step:
    """A page of the tour; `number` begins at 1."""

    number: int
    view: str
    title: str
    text: str

    @property
    def next_number(self) -> int | None:
        return self.number + 1 if self.number < len(STEPS) else None

    @property
    def total(self) -> int:
        return len(STEPS)


_PAGES = (
    (
        "now",
        "Now",
        "Problems come first, each with its remedy. If a destination has no binding, its messages "
        "are stuck: follow the link and restore the binding. Then RabbitMQ sends them on within "
        "three minutes.",
    ),
    (
        "topology:topologies",
        "Topologies",
        "Each line is a way to delay or retry messages. Open “orders” to see its diagram with the "
        "messages that wait.",
    ),
    (
        "analytics:scheduled",
        "Scheduled",
        "Every message that waits, and when it is due. Select one of shop.delay-level to cancel or "
        "reschedule it.",
    ),
    (
        "dead_letters",
        "Dead letters",
        "Failed messages, grouped by cause. Open “shop.PriceMissing”: it has a note, an owner and "
        "an example, and you can replay it.",
    ),
    (
        "replays",
        "Replays",
        "One replay paused itself, because its first messages failed again. The others stay "
        "parked: none is lost.",
    ),
    (
        "topology:findings_overview",
        "Findings",
        "Mistakes in the definitions, the worst first. The queue “newsletter” loses messages: its "
        "finding has the command that corrects it. Reports has four weeks of history.",
    ),
)
STEPS = tuple(Step(number, *page) for number, page in enumerate(_PAGES, 1))


def current_step(request: HttpRequest) -> Step | None:
    """None for somebody who is not on the tour."""
    number = request.session.get(KEY)
    return STEPS[number - 1] if isinstance(number, int) and 0 < number <= len(STEPS) else None


def go_to_step(request: HttpRequest, text: str) -> Step | None:
    """The step of this number, which the session remembers; None ends the tour."""
    step = next((step for step in STEPS if str(step.number) == text), None)
    if step is None:
        request.session.pop(KEY, None)
    else:
        request.session[KEY] = step.number
    return step
