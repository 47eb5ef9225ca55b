"""The history of a message: as steps in time, and as a diagram of its path by x-death.

What is only inferred is marked. First comes what its headers say, then what Delayboard did with it:
discarded, restored, replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from django.db.models import Exists, OuterRef, Q

from analytics.recorder.copies import published
from analytics.scheduled.pages.lines import SOURCES
from delayboard.dead_letters.parked.redact_cause import hides_history
from delayboard.dead_letters.replay.claims import MAYBE_PUBLISHED
from delayboard.models import ItemState, ParkedMessage, ParkedState, ReplayItem
from delayboard.models.replay import OPEN, ReplayEdit, ReplayOutcome
from topology.content.text import visible
from topology.deaths import Death, History, newest_death
from topology.graph.build import Graph, Node
from topology.graph.dot import arrange
from topology.graph.edges import Edge
from topology.graph.svg import draw
from topology.message import Message
from topology.redaction import HIDDEN, NOTHING, Redaction

Kind = Literal["start", "death", "again", "now", "end"]
_FIRST = datetime.min.replace(tzinfo=UTC)
# Name of a URL, and its arguments.
Page: TypeAlias = tuple[str | int, ...]
MOST = 10
_LAST = datetime.max.replace(tzinfo=UTC)
_EVIDENCE = {
    ReplayOutcome.DIED: "Delayboard found the message in a dead-letter queue.",
    ReplayOutcome.DELIVERED: "A tap recorded the delivery, or a consumer failure proves it.",
    ReplayOutcome.DELAYED: "The delivery is not observed. You can replay the message again.",
    ReplayOutcome.UNOBSERVED: "Delayboard recorded no later event.",
}
MOST_DEATHS = 40


@dataclass(frozen=True)
class Step:
    """One event. `at` is None when its time is unknown.

    `what` is one or two words, `place` its queue or exchange, `detail` a sentence on the evidence.
    `page` is about the event.
    """

    kind: Kind
    what: str
    place: str = ""
    at: datetime | None = None
    detail: str = ""
    death: Death | None = None
    is_inferred: bool = False
    page: Page = ()

    @property
    def mark(self) -> str:
        """What its sign on the line looks like: a death like its reason."""
        return self.death.reason if self.death else self.kind


def build_history(
    message: Message, history: History, then: Sequence[Step] = ()
) -> tuple[Step, ...]:
    """The steps from the publication to the present place, and what was done with the message
    `then`, in order.
    """
    deaths = [Step("death", d.reason, d.queue, d.first_at, death=d) for d in history.deaths]
    latest = _latest(message, history)
    steps = [_publication(message, history), *deaths, *([latest] if latest else []), *then]
    known, moments = _FIRST, []
    for step in steps:
        known = step.at.replace(microsecond=0) if step.at else known
        moments.append(known)
    places = sorted(range(len(steps)), key=lambda place: moments[place])
    return tuple(steps[place] for place in places)


def _publication(message: Message, history: History) -> Step:
    first = next(iter(history.deaths), None)
    place = first.exchange if first else message.exchange
    at, source = published(message, recorded_at=None)
    sentence = (
        f"The time is from {SOURCES.get(source, source)}." if at else "The time is not recorded."
    )
    if first and first.order_is_inferred:
        sentence += " The exchange is inferred from the order of the deaths."
    return Step("start", "published", place, at, sentence, is_inferred=at is None)


def _latest(message: Message, history: History) -> Step | None:
    """The last death of all, where it was not the first of its kind: its time is not kept."""
    newest = newest_death(message.headers)
    if newest is None or not history.deaths or history.total == len(history.deaths):
        return None
    queue, reason = newest
    if not history.count(queue, reason) > 1:
        return None
    after = max((d.first_at for d in history.deaths if d.first_at), default=None)
    sentence = "x-death keeps only the time of the first round."
    if after:
        sentence = f"Not before {after:%Y-%m-%d %H:%M:%S} UTC: {sentence[0].lower()}{sentence[1:]}"
    is_recorded = "x-last-death-queue" in message.headers
    return Step("again", f"last {reason}", queue, None, sentence, is_inferred=not is_recorded)


def build_later_steps(
    parked_message: ParkedMessage, rules: Redaction = NOTHING
) -> tuple[Step, ...]:
    """The steps since it was parked, in the order of their times, as `rules` let them be seen."""
    # Others of equal content from the same queue; two equal ones can both be real.
    # Without those that its replays name already.
    of_replays = ReplayItem.objects.filter(
        Q(parked_message=parked_message) | Q(died_as=parked_message)
    )
    named = of_replays.values_list("parked_message_id", "died_as_id")
    others = ParkedMessage.objects.filter(
        broker=parked_message.broker,
        queue=parked_message.queue,
        content_id=parked_message.content_id,
    ).exclude(pk__in={parked_message.pk, *(pk for pair in named for pk in pair if pk)})
    steps = [
        *_states(parked_message),
        *_replays(parked_message, rules),
        *[
            Step(
                "now",
                *_equal(parked_message, other),
                is_inferred=True,
                page=_parked_page(parked_message, other.pk),
            )
            for other in others.order_by("-pk")[:MOST]
        ],
    ]
    parked, *rest = steps
    return (parked, *sorted(rest, key=lambda step: step.at or _LAST))


def _states(parked_message: ParkedMessage) -> list[Step]:
    by = f" By {parked_message.state_by.get_username()}." if parked_message.state_by else ""
    came_from, page = _describe_origin(parked_message)
    sentence = f"Stored in Delayboard and removed from the queue.{came_from}"
    steps = [
        Step("now", "parked", parked_message.queue, parked_message.parked_at, sentence, page=page)
    ]
    if parked_message.state == ParkedState.DISCARDED:
        sentence = f"You can restore the message until it is older than its retention.{by}"
        steps.append(Step("end", "discarded", at=parked_message.state_at, detail=sentence))
    elif _was_restored(parked_message):
        steps.append(Step("now", "restored", at=parked_message.state_at, detail=by.strip()))
    return steps


def _was_restored(parked_message: ParkedMessage) -> bool:
    """A message that a replay let go of is parked again too, and was not restored."""
    is_parked_again = (
        parked_message.state == ParkedState.PARKED
        and parked_message.state_at != parked_message.parked_at
    )
    if not is_parked_again:
        return False
    return not parked_message.replays.filter(batch__claimed_to__gt=0).exists()


def _describe_origin(parked_message: ParkedMessage) -> tuple[str, Page]:
    """A sentence on the replay that it came back from, and the page of the original message."""
    item = ReplayItem.objects.filter(died_as=parked_message.pk).order_by("pk").first()
    if item is None:
        return "", ()
    after = f"after replay {item.batch_id}."
    if item.parked_message_id is None:
        return f" Dead-lettered again {after}", ("replay_batch", item.batch_id)
    earlier = _parked_page(parked_message, item.parked_message_id)
    return f" It is parked message {item.parked_message_id}, dead-lettered again {after}", earlier


def _replays(parked_message: ParkedMessage, rules: Redaction) -> Iterator[Step]:
    """What each replay that has it did with it; drafts did nothing."""
    rows = parked_message.replays.filter(batch__started_at__isnull=False).select_related(
        "route", "batch"
    )
    rows = rows.annotate(is_edited=Exists(ReplayEdit.objects.filter(item=OuterRef("pk"))))
    for item in rows.order_by("-pk")[:MOST]:
        yield _sent(item, is_hidden=hides_history(rules))
        if item.state == ItemState.DONE and item.outcome:
            yield _outcome(parked_message, item)


def _sent(item: ReplayItem, *, is_hidden: bool) -> Step:
    """The target shows where the message was published first, which rules may redact."""
    where = "" if item.route is None else item.route.exchange or item.route.routing_key
    where = HIDDEN if where and is_hidden else where
    sentences = []
    if item.route is not None and item.state == ItemState.DONE and not is_hidden:
        exchange = f"exchange {item.route.exchange}" if item.route.exchange else "default exchange"
        sentences.append(
            f"Sent to the {exchange} with routing key {item.route.routing_key or '(none)'}."
        )
    if getattr(item, "is_edited", False):
        sentences.append("Edited: the sent message differs from this parked message.")
    if item.may_be_duplicated:
        sentences.append("The message may be duplicated.")
    sentences.append(HIDDEN if item.error and is_hidden else item.error)
    return Step(
        "now",
        _done(item),
        where,
        item.ended_at,
        " ".join(text for text in sentences if text),
        page=("replay_batch", item.batch_id),
    )


def _done(item: ReplayItem) -> str:
    name = f"replay {item.batch_id}"
    if item.state == ItemState.DONE:
        return f"replayed in {name}"
    if item.state in OPEN:
        return f"in {name}: {item.get_state_display()}"
    if item.state == ItemState.UNKNOWN or item.error == MAYBE_PUBLISHED:
        return f"possibly sent in {name}: {item.get_state_display()}"
    return f"not sent in {name}: {item.get_state_display()}"


def _outcome(parked_message: ParkedMessage, item: ReplayItem) -> Step:
    what, sentence = item.get_outcome_display(), _EVIDENCE[ReplayOutcome(item.outcome)]
    kind: Kind = "now"
    page: Page = ("replay_batch", item.batch_id)
    if item.outcome == ReplayOutcome.DIED:
        kind = "again"
        if item.died_as_id is not None:
            what, sentence = f"{what} as parked message {item.died_as_id}", ""
            page = _parked_page(parked_message, item.died_as_id)
    detail = f"Replay {item.batch_id}. {sentence}".rstrip()
    return Step(kind, what, at=item.outcome_at, detail=detail, page=page)


def _equal(parked_message: ParkedMessage, other: ParkedMessage) -> tuple[str, str, datetime, str]:
    if parked_message.repeat_of_id == other.pk or other.repeat_of_id == parked_message.pk:
        sentence = "Possible repeat: a crash may have parked the same message twice."
    else:
        sentence = "Equal properties and body: dead-lettered again, or published twice."
    return f"equal message {other.pk} parked", other.queue, other.parked_at, sentence


def _parked_page(parked_message: ParkedMessage, number: int) -> Page:
    return ("parked_message", parked_message.broker.slug, number)


def path_diagram(message: Message, history: History, queue: str) -> str:
    """An SVG in which every name is escaped; "" for a message that has never died."""
    if not _draw(history.deaths):
        return ""
    layout = arrange(path_graph(message, history, queue))
    return draw(layout, title="Path of this message", description="", id="path")


def path_graph(message: Message, history: History, queue: str) -> Graph:
    """The graph of the message's queues in the order of their first deaths, with the exchanges
    between them.

    An arrow is marked as inferred when only the order or the counts support it.
    """
    deaths = _draw(history.deaths)
    edges: dict[tuple[str, str], Edge] = {}
    before = ""
    for death in deaths:
        _add_death(edges, before, death, is_sure=not death.order_is_inferred)
        before = f"queue/{death.queue}"
    # The first of the queues in which it died more than once: there a round begins.
    for death in [death for death in deaths if death.count > 1][:1]:
        _add_death(edges, before, death, is_sure=False)
    if queue:
        # The edge from its latest death to its queue, according to the delivery.
        newest = newest_death(message.headers)
        known = {f"queue/{death.queue}" for death in history.deaths}
        last = f"queue/{newest[0]}" if newest else ""
        start = last if last in known else before
        key = message.routing_key
        if message.exchange:
            exchange = f"exchange/{message.exchange}"
            _add_edge(edges, Edge(start, exchange, "dead-letter", "last dead-letters to"))
            _add_edge(edges, Edge(exchange, f"queue/{queue}", "binding", "routes to", (key,), key))
        else:
            what = "last dead-letters to"
            _add_edge(edges, Edge(start, f"queue/{queue}", "dead-letter", what, (key,), key))
    return _make_graph(deaths, edges.values(), queue)


def _draw(deaths: tuple[Death, ...]) -> tuple[Death, ...]:
    """The deaths with a name to draw, or both ends of what could not be read."""
    half = MOST_DEATHS // 2
    deaths = tuple(death for death in deaths if death.queue)
    return deaths if len(deaths) <= MOST_DEATHS else deaths[:half] + deaths[-half:]


def _add_death(
    edges: dict[tuple[str, str], Edge], before: str, death: Death, *, is_sure: bool
) -> None:
    """Add the path from the queue before, through the exchange, to the queue of this death."""
    kind: Literal["dead-letter", "alternate"] = "dead-letter" if is_sure else "alternate"
    what = "dead-letters to" if is_sure else "dead-letters to (inferred)"
    queue = f"queue/{death.queue}"
    key = death.routing_key
    if death.exchange:
        exchange = f"exchange/{death.exchange}"
        if before:
            _add_edge(edges, Edge(before, exchange, kind, what))
        _add_edge(edges, Edge(exchange, queue, "binding", "routes to", (key,), key))
    elif before:
        _add_edge(edges, Edge(before, queue, kind, what, (key,), key))


def _add_edge(edges: dict[tuple[str, str], Edge], edge: Edge) -> None:
    """Keep the first edge between two ends."""
    edges.setdefault((edge.source, edge.target), edge)


def _make_graph(deaths: tuple[Death, ...], edges: Iterable[Edge], queue: str) -> Graph:
    drawn = tuple(edges)
    badges: dict[str, list[str]] = {}
    for number, death in enumerate(deaths, start=1):
        badge = f"{number}: {death.reason}" + (f" ×{death.count}" if death.count > 1 else "")
        badges.setdefault(f"queue/{death.queue}", []).append(visible(badge))
    ids = dict.fromkeys([end for edge in drawn for end in (edge.source, edge.target)])
    ids |= dict.fromkeys(badges)
    nodes = tuple(_make_node(end, badges.get(end, []), queue) for end in ids)
    kept = {node.id for node in nodes}
    return Graph(nodes, tuple(e for e in drawn if e.source in kept))


def _make_node(end: str, deaths: list[str], queue: str) -> Node:
    kind, _, name = end.partition("/")
    if kind == "exchange":
        return Node(end, "exchange", name)
    words = "last queue" if name == queue else "queue"
    return Node(end, "queue", name, words, badge=" · ".join(deaths[:2])[:40])
