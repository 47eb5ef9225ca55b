"""Where a person is signed in, and the end of a session; administrators see those of everybody."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from delayboard.sign_in.sessions import end_session, list_sessions
from topology import access, audit
from topology.models import Role


@require_safe
def sessions(request: HttpRequest) -> HttpResponse:
    """One's own sessions; all with `all` for admins of every broker."""
    is_admin = access.may(request.user, None, Role.ADMIN)
    shows_all = is_admin and "all" in request.GET
    found = list_sessions(request.session.session_key, None if shows_all else request.user.pk)
    names = dict(
        User.objects.filter(pk__in={one.user_id for one in found}).values_list("pk", "username")
    )
    rows = [(names[one.user_id], one) for one in found if one.user_id in names]
    context = {"sessions": rows, "is_admin": is_admin, "shows_all": shows_all}
    return render(request, "registration/sessions.html", context)


@require_POST
def session_end(request: HttpRequest) -> HttpResponse:
    """End the session whose name is posted; another person's needs the role admin everywhere."""
    is_admin = access.may(request.user, None, Role.ADMIN)
    own = None if is_admin else request.user.pk
    owner = end_session(request.POST.get("session", ""), own)
    back = redirect("sessions")
    if "all" in request.POST:
        back["Location"] += "?all=1"
    if owner is None:
        messages.info(request, "This session has ended already.")
        return back
    person = User.objects.filter(pk=owner).first()
    name = person.get_username() if person else str(owner)
    audit.record(request.user, "session ended", what=name)
    messages.success(request, f"The session of {name} was ended.")
    return back
