"""Accounts and grants in Django's admin; brokers have pages of their own."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import UserAdmin
from django.http import HttpRequest

from topology import audit
from topology.models import Grant


class GrantInline(admin.TabularInline):
    model = Grant
    extra = 1


class AccountAdmin(UserAdmin):
    """Accounts with their roles; every change is in the audit log."""

    inlines: ClassVar[tuple[type[GrantInline], ...]] = (GrantInline,)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        held = [str(grant) for grant in Grant.objects.filter(user=form.instance)]
        audit.record(
            request.user,
            "account changed" if change else "account added",
            what=form.instance.get_username(),
            details={"grants": held, "superuser": form.instance.is_superuser},
        )

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        name = obj.get_username()
        super().delete_model(request, obj)
        audit.record(request.user, "account deleted", what=name)


admin.site.unregister(get_user_model())
admin.site.register(get_user_model(), AccountAdmin)
