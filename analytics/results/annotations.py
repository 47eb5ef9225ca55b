"""Annotations of a range: what people added, and what Delayboard did or recorded itself.

Our own changes and replays come from the audit log, outages from the gaps of the recorders: they
are read there, so that no second copy can differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import Q

from analytics.models import Annotation, Gap
from analytics.models.annotation import AnnotationKind
from analytics.results.figures import GROUP_MESSAGES, Figures
from topology import audit
from topology.content.export_format import format_moment
from topology.delays import MomentError, read_moment
from topology.models import AuditEntry, Broker, Topology, Work

# Actions of the audit log that change the structure of a broker, and so what messages meet there.
CHANGES = (
    *("topology applied", "topology edited", "topology deleted", "tap replaced"),
    *("definitions imported", "finding remedied", "destination unbound"),
)
REPLAYED = "replay started"
# Time between the begins of gaps of several topologies that are one outage.
SAME_OUTAGE = timedelta(seconds=60)
MOST_ANNOTATIONS = 500
KINDS = tuple(AnnotationKind.values)


class AnnotationError(ValueError):
    """A value is not valid; the message says which."""


@dataclass(frozen=True)
class Mark:
    """An annotation as charts and sentences need it.

    `broker` and `topology` are slugs, "" for all; `until_at` is None for a moment. `pk` is that of
    a row, which can be deleted, and None of what Delayboard did or recorded itself.
    """

    at: datetime
    until_at: datetime | None
    kind: str
    text: str
    version: str = ""
    broker: str = ""
    topology: str = ""
    author: str = ""
    pk: int | None = None


def select_marks(
    marks: Iterable[Mark],
    first_at: datetime,
    end_at: datetime,
    *,
    brokers: Iterable[str] = (),
    topology: str = "",
) -> list[Mark]:
    """The marks that concern this range, these brokers (slugs, all by default) and this topology.

    `end_at` is the first moment after the range. What concerns all topologies of a broker concerns
    each of them. The earliest first.
    """
    shown = frozenset(brokers)
    return sorted(
        (
            one
            for one in marks
            if one.at < end_at
            and (one.until_at or one.at) >= first_at
            and (not shown or not one.broker or one.broker in shown)
            and (not topology or not one.topology or one.topology == topology)
        ),
        key=lambda one: (one.at, one.kind, one.text),
    )


def join_outages(outages: Iterable[Mark]) -> list[Mark]:
    """One outage of a broker in place of one for each of its topologies."""
    joined: list[Mark] = []
    for one in sorted(outages, key=lambda mark: (mark.broker, mark.at)):
        last = joined[-1] if joined else None
        if last and last.broker == one.broker and one.at - last.at < SAME_OUTAGE:
            until_at = max(last.until_at or last.at, one.until_at or one.at)
            topology = one.topology if one.topology == last.topology else ""
            joined[-1] = replace(last, until_at=until_at, topology=topology)
        else:
            joined.append(one)
    return joined


def find_first_versions(
    days: Mapping[date, Figures], first: date, known: Iterable[Mark]
) -> list[Mark]:
    """A deploy for each version that messages state for the first time in the days from `first`
    on, unless it is among those `known`. `days` are in order; the first with versions is no news.
    """
    seen, named = set[str](), {one.version for one in known if one.kind == "deploy"}
    found: list[Mark] = []
    for day, figures in days.items():
        versions = {str(key[1]) for key, _ in figures.items(GROUP_MESSAGES) if key[0] == "version"}
        if seen and day >= first:
            at = datetime.combine(day, time(), UTC)
            found += [
                Mark(at, at + timedelta(days=1), "deploy", f"Version {one} first seen", one)
                for one in sorted(versions - seen - named)
            ]
        seen |= versions
    return found


def read_marks(
    first_at: datetime,
    end_at: datetime,
    brokers: Sequence[Broker],
    topology: str = "",
    audited: Iterable[Broker] = (),
) -> list[Mark]:
    """The newest 500 annotations of a range for these brokers and this topology (slugs).

    Who made a change is known to those who may read the audit log of its broker: of `audited`.
    """
    slugs = {broker.pk: broker.slug for broker in brokers}
    marks = [
        *_read_added(first_at, end_at, slugs),
        *_read_audited(first_at, end_at, slugs, {broker.pk for broker in audited}),
        *_read_outages(first_at, end_at, slugs, topology),
    ]
    return select_marks(marks, first_at, end_at, topology=topology)[-MOST_ANNOTATIONS:]


def _read_added(first_at: datetime, end_at: datetime, slugs: Mapping[int, str]) -> Iterable[Mark]:
    rows = Annotation.objects.filter(
        Q(broker__in=slugs) | Q(broker=None),
        Q(at__gte=first_at) | Q(until_at__gte=first_at),
        at__lt=end_at,
    )
    return map(
        make_mark, rows.select_related("broker", "topology").order_by("-at")[:MOST_ANNOTATIONS]
    )


def make_mark(row: Annotation) -> Mark:
    names = ("at", "until_at", "kind", "text", "version", "author", "pk")
    return Mark(
        broker=row.broker.slug if row.broker else "",
        topology=row.topology.slug if row.topology else "",
        **{name: getattr(row, name) for name in names},
    )


def _read_audited(
    first_at: datetime, end_at: datetime, slugs: Mapping[int, str], audited: Set[int]
) -> Iterable[Mark]:
    """Changes that did not fail, and replays, by name or by what they replay."""
    entries = list(
        AuditEntry.objects.filter(action__in=(*CHANGES, REPLAYED), outcome="done", broker__in=slugs)
        # A replay that began earlier may have run until then.
        .filter(at__gte=first_at - timedelta(days=1), at__lt=end_at)
        .order_by("-at")[:MOST_ANNOTATIONS]
    )
    if not entries:
        return
    replays = [one.details.get("batch") for one in entries if one.action == REPLAYED]
    ended = dict(
        Work.objects.filter(kind="replay", subject__in=[pk for pk in replays if pk])
        .exclude(ended_at=None)
        .values_list("subject", "ended_at")
    )
    of_brokers = Topology.objects.filter(broker__in=slugs).order_by("pk")
    topologies = {
        (broker, name): slug
        for broker, name, slug in of_brokers.values_list("broker", "name", "slug")
    }
    for one in entries:
        assert one.broker_id is not None
        author = one.username if one.broker_id in audited else ""
        of: dict[str, Any] = {"broker": slugs[one.broker_id], "author": author}
        if one.action == REPLAYED:
            said = one.details.get("name") or one.what
            yield Mark(
                one.at, ended.get(one.details.get("batch")), "replay", f"Replay: {said}", **of
            )
            continue
        topology = topologies.get((one.broker_id, one.what), "")
        text = f"{one.action.capitalize()}: {one.what}" if one.what else one.action.capitalize()
        yield Mark(one.at, None, "change", text, topology=topology, **of)


def _read_outages(
    first_at: datetime, end_at: datetime, slugs: Mapping[int, str], topology: str
) -> Iterable[Mark]:
    """What the recorders could not read: figures of such a time may lack messages."""
    gaps = Gap.objects.filter(
        topology__broker__in=slugs, until_at__gte=first_at, from_at__lt=end_at
    ).select_related("topology")
    if topology:
        gaps = gaps.filter(topology__slug=topology)
    return join_outages(
        Mark(
            *(one.from_at, one.until_at, "outage", one.why),
            broker=slugs[one.topology.broker_id],
            topology=one.topology.slug,
        )
        for one in gaps[:MOST_ANNOTATIONS]
    )


def make_record(mark: Mark) -> dict[str, Any]:
    """An annotation as commands and the API write it; `id` is None if it cannot be deleted."""
    names = ("kind", "text", "version", "author")
    return {
        "id": mark.pk,
        "at": format_moment(mark.at),
        "until_at": format_moment(mark.until_at),
        **{name: getattr(mark, name) for name in names},
        "broker": mark.broker or None,
        "topology": mark.topology or None,
    }


def add_annotation(
    user: audit.Actor,
    *,
    text: str,
    kind: str = "",
    at: str = "",
    until: str = "",
    version: str = "",
    broker: Broker | None = None,
    topology: Topology | None = None,
) -> Annotation:
    """Store one; by default a deploy, now. Times are as people type them.

    Raises AnnotationError.
    """
    text, version, kind = text.strip(), version.strip(), kind or AnnotationKind.DEPLOY
    text = text or version
    now = datetime.now(UTC)
    if not text:
        raise AnnotationError("An annotation needs a text or a version.")
    for name, value, most in (("text", text, 200), ("version", version, 100)):
        if len(value) > most:
            raise AnnotationError(f"The {name} has more than {most} characters. Shorten it.")
        if not value.isprintable():
            raise AnnotationError(f"The {name} has characters that cannot be shown. Remove them.")
    if kind not in KINDS:
        raise AnnotationError(f"“{kind[:40]}” is not a kind. Kinds: {', '.join(KINDS)}.")
    try:
        begin = read_moment(at, now) if at.strip() else now
        end = read_moment(until, now) if until.strip() else None
    except MomentError as error:
        raise AnnotationError(str(error)) from error
    if end is not None and end < begin:
        raise AnnotationError("The annotation ends before it begins. Swap the two times.")
    if topology is not None:
        if broker is not None and topology.broker_id != broker.pk:
            raise AnnotationError(f"The topology “{topology.slug}” is on another broker.")
        broker = topology.broker
    details = {"kind": str(kind), "at": begin.isoformat(), "version": version}
    with audit.recorded(user, "annotation added", broker=broker, what=text, details=details):
        return Annotation.objects.create(
            at=begin,
            until_at=end,
            kind=kind,
            text=text,
            version=version,
            broker=broker,
            topology=topology,
            author=user.get_username() if user is not None else "delayboard",
        )


def delete_annotation(user: audit.Actor, row: Annotation) -> None:
    details = {"kind": row.kind, "at": row.at.isoformat(), "version": row.version}
    with audit.recorded(
        user, "annotation deleted", broker=row.broker, what=row.text, details=details
    ):
        row.delete()
