"""A person's own account: another password, the time zone of pages."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import PasswordChangeView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.views.decorators.http import require_http_methods

from delayboard.sign_in import time_zone
from topology import audit


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
