"""A person's own account: another password, the time zone of pages."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import PasswordChangeView
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse, reverse_lazy
from django.views.decorators.http import require_http_methods, require_POST

from delayboard.columns import COLUMNS, choose_columns
from delayboard.sign_in import time_zone
from topology import audit
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
