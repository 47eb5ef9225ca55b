"""Tokens of the API: made, shown once, listed, revoked; administrators see those of everybody."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from delayboard.models import ApiToken
from delayboard.sign_in.tokens import (
    LONGEST_DAYS,
    LONGEST_NAME,
    TokenError,
    make_token,
    revoke_token,
)
from topology import access
from topology.database.paging import row_number
from topology.models import Broker, Role


@require_http_methods(["GET", "HEAD", "POST"])
def api_tokens(request: HttpRequest) -> HttpResponse:
    """The page of one's own tokens; of all with `all` for admins of every broker. A POST makes
    one.
    """
    is_admin = access.may(request.user, None, Role.ADMIN)
    shows_all = is_admin and "all" in request.GET
    made, secret, problem = None, "", ""
    if request.method == "POST":
        try:
            made, secret = _make(request)
        except TokenError as error:
            problem = str(error)
    rows = ApiToken.objects.filter(revoked_at=None).select_related("user")
    held = max((role for _, role in access.read_rights(request.user)), default=0)
    names = dict(Broker.objects.values_list("pk", "name"))
    context = {
        "rows": [
            (one, [names.get(pk, "deleted broker") for pk in one.broker_ids or ()])
            for one in (rows if shows_all else rows.filter(user=request.user.pk))
        ],
        "now": timezone.now(),
        "is_admin": is_admin,
        "shows_all": shows_all,
        "roles": [(role.value, role.label) for role in Role if role <= held],
        "brokers": access.visible_brokers(request.user),
        "longest_name": LONGEST_NAME,
        "longest_days": LONGEST_DAYS,
        "typed": request.POST if problem else {},
        "chosen": request.POST.getlist("broker") if problem else [],
        "problem": problem,
        "made": made,
        "secret": secret,
    }
    answer = render(
        request, "registration/api_tokens.html", context, status=400 if problem else 200
    )
    answer["Cache-Control"] = "no-store"
    return answer


@require_POST
def api_token_revoke(request: HttpRequest) -> HttpResponse:
    """Revoke the token whose id is posted; another person's needs the role admin everywhere."""
    rows = ApiToken.objects.select_related("user")
    if not access.may(request.user, None, Role.ADMIN):
        rows = rows.filter(user=request.user.pk)
    token = get_object_or_404(rows, pk=row_number(request.POST.get("token", "")) or 0)
    assert isinstance(request.user, User)
    revoke_token(request.user, token)
    messages.success(request, f"The token “{token.name}” is revoked.")
    back = redirect("api_tokens")
    if "all" in request.POST:
        back["Location"] += "?all=1"
    return back


def _make(request: HttpRequest) -> tuple[ApiToken, str]:
    """Raises TokenError."""
    assert isinstance(request.user, User)
    sent = request.POST
    roles = {str(role.value): role for role in Role}
    if (role := roles.get(sent.get("role", ""))) is None:
        raise TokenError("Select a role.")
    days = sent.get("days", "")
    brokers = [row_number(text) or 0 for text in sent.getlist("broker")]
    return make_token(
        request.user,
        name=sent.get("name", ""),
        role=role,
        brokers=brokers or None,
        days=int(days) if days.isascii() and days.isdigit() and len(days) < 5 else 0,
        addresses=sent.get("addresses", ""),
    )
