"""Accounts and grants in Django's admin; brokers have pages of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from axes.helpers import get_cache
from axes.models import AccessAttempt
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import UserAdmin
from django.db import transaction
from django.http import HttpRequest

from topology import audit
from topology.models import Grant


class GrantInline(admin.TabularInline):
    model = Grant
    extra = 1


class AccountAdmin(UserAdmin):
    """Accounts with their roles; every change is in the audit log."""

    inlines: ClassVar[tuple[type[GrantInline], ...]] = (GrantInline,)
    actions = ("unlock",)

    @admin.action(description="Unlock sign-in of selected users", permissions=("change",))
    def unlock(self, request: HttpRequest, queryset: Any) -> None:
        """Forget their failed sign-ins, wherever they came from."""
        names = [account.get_username() for account in queryset]
        with transaction.atomic():
            AccessAttempt.objects.filter(username__in=names).delete()
            for name in names:
                audit.record(request.user, "sign-in unlocked", what=name)
        # The counts in memory have no names: those of other accounts are forgotten too.
        get_cache().clear()
        self.message_user(request, "The selected users can sign in again.")

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._record(request, "account added", obj)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Called for a new password too."""
        self._record(request, "account changed", obj, changed=changed_fields(message))
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Called before one account, or a selection of them, is deleted."""
        for account in queryset:
            self._record(request, "account deleted", account)
        return super().log_deletions(request, queryset)

    def _record(self, request: HttpRequest, action: str, account: Any, **details: Any) -> None:
        held = [str(grant) for grant in Grant.objects.filter(user=account)]
        details |= {"grants": held, "superuser": account.is_superuser}
        audit.record(request.user, action, what=account.get_username(), details=details)


def changed_fields(message: str | Iterable[dict[str, Any]]) -> list[str]:
    """The names, never the values, of the fields in an admin's change message."""
    parts = [] if isinstance(message, str) else message
    return [str(name) for part in parts for name in part.get("changed", {}).get("fields", ())]


admin.site.unregister(get_user_model())
admin.site.register(get_user_model(), AccountAdmin)
