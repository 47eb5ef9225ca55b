"""A person's own account: password, time zone, columns of lists, and sessions."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordChangeView
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse, reverse_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from delayboard.columns import COLUMNS, choose_columns
from delayboard.sign_in import time_zone
from delayboard.sign_in.sessions import end_session, list_sessions
from topology import access, audit
from topology.models import Role
from topology.views.redirect_back import next_of


class PasswordView(PasswordChangeView):
    """Django's own view with our page; the change is in the audit log."""

    template_name = "registration/password.html"
    success_url = reverse_lazy("now")

    def form_valid(self, form: Any) -> HttpResponse:
        answer = super().form_valid(form)
        audit.record(self.request.user, "password changed")
        messages.success(self.request, "Your password was changed.")
        return answer


@require_http_methods(["GET", "HEAD", "POST"])
def preferences(request: HttpRequest) -> HttpResponse:
    """The time zone in which pages show times."""
    zones = time_zone.list_zones()
    chosen = request.session.get(time_zone.SESSION_KEY, "")
    error = ""
    if request.method == "POST":
        chosen = request.POST.get("time_zone", "")
        if not chosen or chosen in zones:
            time_zone.choose(request, chosen)
            messages.success(request, "Your preferences were saved.")
            return redirect("preferences")
        error = "This is not a time zone of the list. Select another one."
    context = {"zones": zones, "chosen": chosen, "error": error, "site_zone": settings.TIME_ZONE}
    return render(request, "registration/preferences.html", context)


@require_POST
def list_columns(request: HttpRequest, name: str) -> HttpResponse:
    """Which columns of a list the user sees from now on."""
    if name not in COLUMNS:
        raise Http404
    choose_columns(request.user, name, request.POST.getlist("column"))
    return redirect(next_of(request, reverse("now")))


@require_safe
def sessions(request: HttpRequest) -> HttpResponse:
    """The page of one's own sessions; of all sessions with `all` for admins of every broker."""
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
