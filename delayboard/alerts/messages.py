"""Which problems there are, and the messages about them: written in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from zlib import crc32

from django.db.models import F, Q, QuerySet

from delayboard.models.alert import AlertMessage, AlertNotice, AlertProblem, AlertReceiver
from delayboard.now.problems import Problem
from topology.content.text import count_of

# A problem that comes and goes within this time is not sent.
MINIMUM_DURATION = timedelta(minutes=1)
# Problems that a message lists; it counts the others.
LISTED = 20
LONGEST_IDENTITY = 300
# Rows of the log that the page of alerts shows.
LOG_ROWS = 100
ALL_CLEAR = "Delayboard: all clear"


def note_problems(
    troubles: Iterable[Problem], now: datetime, undecided: Collection[str] = ()
) -> None:
    """Bring the rows of problems up to what Now shows; those with an undecided identity stay."""
    shown = {one.identity[:LONGEST_IDENTITY]: one for one in troubles}
    lasting = Q(resolved_at=None) | Q(resolved_at__gt=now - MINIMUM_DURATION)
    rows = {row.identity: row for row in AlertProblem.objects.filter(lasting).order_by("pk")}
    for identity, one in shown.items():
        values = {"kind": one.kind.value, "severity": one.severity, "sentence": one.sentence}
        row = rows.get(identity)
        if row is None:
            AlertProblem.objects.create(identity=identity, since_at=now, **values)
        elif row.resolved_at or any(getattr(row, k) != v for k, v in values.items()):
            AlertProblem.objects.filter(pk=row.pk).update(resolved_at=None, **values)
    stays = {*shown, *undecided}
    ended = [one.pk for name, one in rows.items() if one.resolved_at is None and name not in stays]
    AlertProblem.objects.filter(pk__in=ended).update(resolved_at=now)


def write_message(receiver: AlertReceiver, now: datetime) -> AlertMessage | None:
    """The next message for this receiver, if there is something to send at this time.

    Within the caller's transaction.
    """
    since = now - timedelta(minutes=receiver.group_minutes)
    is_grouping = receiver.messages.filter(
        is_test=False, report=None, created_at__gt=since
    ).exists()
    if not receiver.sends_alerts or receiver.is_quiet(now) or is_grouping:
        return None
    begun = list(_new_problems(receiver, now))
    over_at = now - MINIMUM_DURATION
    notices = receiver.notices.filter(is_cleared=False, problem__resolved_at__lte=over_at)
    ended = list(notices.select_related("problem"))
    AlertNotice.objects.bulk_create(
        AlertNotice(receiver=receiver, problem=one, is_cleared=_is_over(one, now)) for one in begun
    )
    AlertNotice.objects.filter(pk__in=[one.pk for one in ended]).update(is_cleared=True)
    lasting = [one for one in begun if not _is_over(one, now)]
    over = [one for one in begun if _is_over(one, now)]
    over += [one.problem for one in ended] if receiver.sends_all_clear else []
    if not lasting and not over:
        return None
    remaining = AlertNotice.objects.filter(receiver=receiver, is_cleared=False).count()
    # New problems, else how many remain of those that were reported.
    title = f"Delayboard: {len(over)} resolved, {remaining} open" if remaining else ALL_CLEAR
    title = f"Delayboard: {count_of(len(lasting), 'problem')}" if lasting else title
    body = _make_body(lasting, over, remaining - len(lasting))
    values = {"title": title, "body": body, "created_at": now}
    return AlertMessage.objects.create(receiver=receiver, **values)


def write_test(receiver: AlertReceiver, now: datetime) -> AlertMessage:
    return AlertMessage.objects.create(
        receiver=receiver,
        title="Delayboard: test alert",
        body="This is a test alert. Delayboard sends problems of the page Now to this address.",
        is_test=True,
        created_at=now,
    )


def _make_body(begun: Sequence[AlertProblem], over: Sequence[AlertProblem], others: int) -> str:
    """A line for each problem; `others` were reported before and last."""
    both = (("New problems:", begun), ("Resolved:", over))
    parts = ["\n".join(_lines(heading, problems)) for heading, problems in both if problems]
    if others > 0:
        verb = "is" if others == 1 else "are"
        parts.append(f"{count_of(others, 'problem')} reported before {verb} open.")
    elif not begun:
        parts.append("No reported problem is open.")
    return "\n\n".join(parts)


def _lines(heading: str, problems: Collection[AlertProblem]) -> list[str]:
    shown = list(problems)[:LISTED]
    lines = [
        f"- {' '.join(one.sentence.split())[:500]} (since {one.since_at:%Y-%m-%d %H:%M} UTC)"
        for one in shown
    ]
    rest = len(problems) - len(shown)
    return [heading, *lines, *([f"- and {rest} more"] if rest else [])]


def _new_problems(receiver: AlertReceiver, now: datetime) -> QuerySet[AlertProblem]:
    """Not reported yet; of those that are over, only what began and ended under its eyes."""
    seen = Q(resolved_at=None) | Q(resolved_at__gt=receiver.created_at)
    long = Q(resolved_at=None) | Q(resolved_at__gte=F("since_at") + MINIMUM_DURATION)
    rows = AlertProblem.objects.filter(seen, long, since_at__lte=now - MINIMUM_DURATION)
    return rows.exclude(kind__in=receiver.excluded_kinds).exclude(notices__receiver=receiver)


def _is_over(problem: AlertProblem, now: datetime) -> bool:
    return problem.resolved_at is not None and problem.resolved_at <= now - MINIMUM_DURATION


def make_log_version() -> str:
    """Changes with the newest alerts of the log and their states."""
    rows = AlertMessage.objects.values_list("pk", "state", "attempts")[:LOG_ROWS]
    return f"{crc32(repr(list(rows)).encode()):08x}"
