"""Which problems there are, and the messages about them: written in one transaction.

And where they go: from what an administrator types to an address of Apprise, and a name without
secrets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit
from zlib import crc32

import apprise
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db.models import F, Q, QuerySet

from delayboard.models.acknowledgement import Acknowledgement
from delayboard.models.alert import (
    AlertChannel,
    AlertMessage,
    AlertNotice,
    AlertProblem,
    AlertReceiver,
)
from delayboard.now.problems import Problem
from topology.content.text import count_of

# Time for which a problem must last to be sent.
MINIMUM_DURATION = timedelta(minutes=1)
# Most problems that a message lists; it counts the others.
LISTED = 20
# Rows of the log that the page of alerts shows.
LOG_ROWS = 100
ALL_CLEAR = "Delayboard: all clear"

EXAMPLES = {
    AlertChannel.EMAIL: "ops@example.org",
    AlertChannel.WEBHOOK: "https://example.org/hook",
    AlertChannel.SLACK: "https://hooks.slack.com/services/…",
    AlertChannel.TEAMS: "the HTTP address of a Teams workflow",
    AlertChannel.PAGERDUTY: "pagerduty://INTEGRATION_KEY@API_KEY",
}
# Channel -> the services of Apprise to which it may lead; others reach the machine itself.
SERVICES = {
    AlertChannel.WEBHOOK: {"json"},
    AlertChannel.SLACK: {"slack"},
    AlertChannel.TEAMS: {"workflow", "workflows", "msteams"},
    AlertChannel.PAGERDUTY: {"pagerduty"},
}
# Characters of the shortest part of an address that is a secret; shorter ones are words.
SECRET_LENGTH = 6
ASSET = apprise.AppriseAsset(
    app_id="Delayboard",
    app_desc="Delayboard",
    app_url="",
    image_url_mask="",
    image_url_logo="",
    async_mode=False,
    http_redirects=False,
    secure_logging=True,
    storage_mode="memory",
)


def note_problems(
    troubles: Iterable[Problem], now: datetime, undecided: Collection[str] = ()
) -> None:
    """Bring the rows of problems up to what Now shows; those with an undecided identity stay."""
    shown = {one.identity: one for one in troubles}
    lasting = Q(resolved_at=None) | Q(resolved_at__gt=now - MINIMUM_DURATION)
    rows = {row.identity: row for row in AlertProblem.objects.filter(lasting).order_by("pk")}
    for identity, one in shown.items():
        values: dict[str, Any] = {
            "kind": one.kind.value,
            "severity": one.severity,
            "sentence": one.sentence,
            "path": one.link.address if one.link else "",
            "broker_id": one.broker,
        }
        row = rows.get(identity)
        if row is None:
            AlertProblem.objects.create(identity=identity, since_at=now, **values)
        elif row.resolved_at or any(getattr(row, k) != v for k, v in values.items()):
            AlertProblem.objects.filter(pk=row.pk).update(resolved_at=None, **values)
    stays = {*shown, *undecided}
    ended = [one.pk for name, one in rows.items() if one.resolved_at is None and name not in stays]
    AlertProblem.objects.filter(pk__in=ended).update(resolved_at=now)


def end_acknowledgements(now: datetime) -> None:
    """Delete those whose time is over or whose problem is. Within the caller's transaction.

    A problem that lasts longer than its snooze is sent again; one that ended meanwhile is not sent.
    """
    lasting = Q(resolved_at=None) | Q(resolved_at__gt=now - MINIMUM_DURATION)
    known = AlertProblem.objects.filter(lasting).values("identity")
    # A page may show a problem sooner than the worker's next look finds it.
    was_seen = Q(created_at__lt=now - 3 * MINIMUM_DURATION)
    ended = Q(until_at=None) & was_seen & ~Q(identity__in=known)
    over = list(Acknowledgement.objects.filter(Q(until_at__lte=now) | ended))
    if not over:
        return
    begun_at = min(row.created_at for row in over)
    problems = AlertProblem.objects.filter(identity__in=[row.identity for row in over])
    open_ones = problems.filter(resolved_at=None)
    AlertNotice.objects.filter(problem__in=open_ones, is_cleared=False).delete()
    AlertNotice.objects.bulk_create(
        (
            AlertNotice(receiver=receiver, problem=problem, is_cleared=True)
            for receiver in AlertReceiver.objects.all()
            for problem in problems.filter(resolved_at__gte=begun_at)
        ),
        ignore_conflicts=True,
    )
    Acknowledgement.objects.filter(pk__in=[row.pk for row in over]).delete()


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
    values = {"title": title, "body": body, "created_at": now, "has_new": bool(lasting)}
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
        f"{_make_link(one)}"
        for one in shown
    ]
    rest = len(problems) - len(shown)
    return [heading, *lines, *([f"- and {rest} more"] if rest else [])]


def _make_link(problem: AlertProblem) -> str:
    """A link on a line of its own, where the site has an address that others can open."""
    is_open = problem.path and problem.resolved_at is None and settings.SITE_URL
    return f"\n  {settings.SITE_URL}{problem.path}" if is_open else ""


def _new_problems(receiver: AlertReceiver, now: datetime) -> QuerySet[AlertProblem]:
    """The problems that were not reported yet; of those that are over, only what began and ended
    while the receiver existed.
    """
    seen = Q(resolved_at=None) | Q(resolved_at__gt=receiver.created_at)
    long = Q(resolved_at=None) | Q(resolved_at__gte=F("since_at") + MINIMUM_DURATION)
    rows = AlertProblem.objects.filter(seen, long, since_at__lte=now - MINIMUM_DURATION)
    known = Acknowledgement.active(now).values("identity")
    rows = rows.exclude(kind__in=receiver.excluded_kinds).exclude(identity__in=known)
    return rows.exclude(notices__receiver=receiver)


def _is_over(problem: AlertProblem, now: datetime) -> bool:
    return problem.resolved_at is not None and problem.resolved_at <= now - MINIMUM_DURATION


def make_log_version() -> str:
    """Changes with the newest alerts of the log and their states."""
    rows = AlertMessage.objects.values_list("pk", "state", "attempts")[:LOG_ROWS]
    return f"{crc32(repr(list(rows)).encode()):08x}"


class AddressRefused(Exception):
    """An address that the channel refuses; the message is a sentence."""


def check_address(channel: str, text: str) -> tuple[AlertChannel, str, str]:
    """The channel, the address and the name to show. Raises AddressRefused."""
    if channel not in EXAMPLES:
        raise AddressRefused("Select a channel.")
    kind, address = AlertChannel(channel), text.strip()
    refusal = AddressRefused(
        f"The address is not valid for {kind.label}. Enter an address such as {EXAMPLES[kind]}."
    )
    if kind == AlertChannel.EMAIL:
        try:
            validate_email(address)
        except ValidationError as error:
            raise refusal from error
        return kind, address, address
    parts = _split(address)
    if parts is None:
        raise refusal
    scheme, host = parts
    is_webhook = kind == AlertChannel.WEBHOOK
    if is_webhook and scheme not in ("http", "https"):
        raise refusal
    url = _webhook_url(address) if is_webhook else address
    service = apprise.Apprise.instantiate(url, asset=ASSET, suppress_exceptions=True)
    # Its names before "://"; Apprise has one or several for each of plain and TLS.
    names: list[str] = []
    for some in (service.protocol, service.secure_protocol) if service else ():
        names += [some] if isinstance(some, str) else some or ()
    if service is None or not SERVICES[kind] & set(names):
        raise refusal
    # Apprise would read a file of this machine, or another address.
    if getattr(service, "template", None):
        raise AddressRefused("Enter the address without the parameter “template”.")
    return kind, address, host if is_webhook else kind.label


def make_url(channel: str, address: str, incident: str) -> str:
    """The address as Apprise takes it.

    PagerDuty has one incident for each name of an incident, until an all-clear resolves it.
    """
    if channel == AlertChannel.WEBHOOK:
        return _webhook_url(address)
    if channel == AlertChannel.PAGERDUTY:
        # The last value of a name counts.
        values = {"action": "map", "dedup": incident, "overflow": "truncate"}
        return f"{address}{'&' if '?' in address else '?'}{urlencode(values)}"
    return address


def read_host(channel: str, address: str) -> str:
    """The host that gets the alerts; "" where the address has keys in place of a host."""
    if channel == AlertChannel.EMAIL:
        return address.rpartition("@")[2]
    scheme, host = _split(address) or ("", "")
    return host if scheme in ("http", "https") else ""


def hide_address(text: str, channel: str, address: str) -> str:
    """The text without the parts of an address that may be secret."""
    parts = _split(address)
    host = parts[1] if parts and channel == AlertChannel.WEBHOOK else ""
    words = re.split(r"[^A-Za-z0-9_.\-]+", address)
    secrets = {word for word in words if len(word) >= SECRET_LENGTH and word != host}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _split(address: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return None
    return (parts.scheme.lower(), host) if host else None


def _webhook_url(address: str) -> str:
    """The URL for Apprise, none of whose own parameters can be set: each parameter of the address
    is sent with it.
    """
    parts = urlsplit(address)
    scheme = "jsons" if parts.scheme.lower() == "https" else "json"
    sent = urlencode([(f"-{name}", value) for name, value in parse_qsl(parts.query, True)])
    # Apprise refuses a URL that ends in "?".
    return f"{scheme}://{parts.netloc}{parts.path}" + (f"?{sent}" if sent else "")
