"""A person's own account: another password."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.views import PasswordChangeView
from django.http import HttpResponse
from django.urls import reverse_lazy

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
