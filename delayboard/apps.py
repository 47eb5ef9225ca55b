from __future__ import annotations

from django.apps import AppConfig


class DelayboardConfig(AppConfig):
    name = "delayboard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.contrib import admin
        from django.contrib.auth.signals import user_logged_in

        from delayboard import checks
        from delayboard.sign_in import sessions, throttle

        assert checks
        admin.site.login_form = throttle.GuardedAdminForm
        user_logged_in.connect(sessions.begin, dispatch_uid="sessions.begin")
        # Django's own receiver fails with the sign-in when the disk is full.
        user_logged_in.disconnect(dispatch_uid="update_last_login")
        user_logged_in.connect(throttle.note_last_login, dispatch_uid="throttle.note_last_login")
