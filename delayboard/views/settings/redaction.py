"""What of a message is hidden from whom: the rules, and what they hide."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from analytics.events import clean
from delayboard.dead_letters.parked.redact_cause import preview
from delayboard.models import RedactionKind, RedactionRule
from delayboard.views.show_refusal import show_refusal
from topology import access, audit
from topology.models import Broker, Role
from topology.redaction import LONGEST, PatternError, check_pattern

# Roles below which a rule can hide something, each with the name of those whom it concerns.
ROLES = ((Role.OPERATOR, "viewers"), (Role.ADMIN, "viewers and operators"))


@require_safe
@access.with_broker(Role.ADMIN)
def redaction(request: HttpRequest, broker: Broker) -> HttpResponse:
    """The rules; with `pattern` and `kind` what such a rule would hide."""
    kind, pattern = (
        request.GET.get("kind", ""),
        clean(request.GET.get("pattern", ""))[: LONGEST + 1],
    )
    context: dict[str, Any] = {
        "broker": broker,
        "rules": RedactionRule.objects.filter(Q(broker=None) | Q(broker=broker)),
        "kinds": RedactionKind.choices,
        "roles": ROLES,
        "may_everywhere": access.may(request.user, None, Role.ADMIN),
        "kind": kind,
        "pattern": pattern,
    }
    if pattern:
        context |= _preview(request, broker, kind, pattern)
    return render(request, "delayboard/redaction.html", context)


@require_POST
@access.with_broker(Role.ADMIN, changes=False)
def redaction_rule_change(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Add a rule, or delete the one whose id is posted as `delete`."""
    with show_refusal(request, "Nothing was changed.", PatternError):
        change = _delete if "delete" in request.POST else _add
        messages.success(request, change(request, broker))
    return redirect("redaction", broker_slug=broker.slug)


def _add(request: HttpRequest, broker: Broker) -> str:
    """Raises PatternError for what is no rule, PermissionDenied for one of all brokers."""
    kind = _kind(request.POST.get("kind", ""))
    pattern = check_pattern(kind, request.POST.get("pattern", ""))
    roles = {str(role.value): role for role, _ in ROLES}
    if request.POST.get("least_role", "") not in roles:
        raise PatternError("Select the roles that the rule applies to.")
    least = roles[request.POST["least_role"]]
    where = None if request.POST.get("everywhere") else broker
    access.require(request.user, where, Role.ADMIN)
    rule, is_new = RedactionRule.objects.get_or_create(
        broker=where, kind=kind, pattern=pattern, least_role=least
    )
    if not is_new:
        raise PatternError("This rule already exists.")
    _recorded(request, "redaction rule added", broker, rule)
    return f"“{pattern}” is now redacted."


def _kind(kind: str) -> str:
    if kind not in RedactionKind.values:
        raise PatternError("Select a header or a body value.")
    return kind


def _delete(request: HttpRequest, broker: Broker) -> str:
    """Raises PatternError when there is no such rule, PermissionDenied for one of all brokers."""
    given = request.POST["delete"]
    found = RedactionRule.objects.filter(Q(broker=None) | Q(broker=broker))
    rule = found.filter(pk=int(given)).first() if given.isdecimal() and len(given) < 19 else None
    if rule is None:
        raise PatternError("This rule no longer exists.")
    access.require(request.user, rule.broker, Role.ADMIN)
    _recorded(request, "redaction rule deleted", broker, rule)
    rule.delete()
    return f"“{rule.pattern}” is no longer redacted."


def _recorded(request: HttpRequest, action: str, broker: Broker, rule: RedactionRule) -> None:
    where = "every broker" if rule.broker is None else rule.broker.name
    details = {"where": where, "least role": Role(rule.least_role).label}
    audit.record(request.user, action, broker=broker, what=str(rule), details=details)


def _preview(request: HttpRequest, broker: Broker, kind: str, pattern: str) -> dict[str, Any]:
    try:
        checked = check_pattern(_kind(kind), pattern)
    except PatternError as error:
        return {"preview_error": str(error)}
    found = preview(broker, kind, checked)
    if row := found.row:
        what = f"{row.pk} of {row.queue}"
        audit.record(request.user, "parked message read", broker=broker, what=what)
    return {"preview": found}
