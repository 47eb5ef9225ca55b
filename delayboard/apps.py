from __future__ import annotations

from typing import Any

from django.apps import AppConfig


class DelayboardConfig(AppConfig):
    name = "delayboard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from allauth.mfa.signals import authenticator_added, authenticator_removed
        from allauth.mfa.totp.internal.auth import TOTP
        from django.contrib.auth.signals import user_logged_in

        from delayboard import checks
        from delayboard.models.dead_letter import replayed_messages_returned
        from delayboard.sign_in import second_factor, sessions, throttle, time_zone

        assert checks
        TOTP._mark_code_used = second_factor.mark_code_used
        replayed_messages_returned.connect(record_returned, dispatch_uid="outcome.record_returned")
        user_logged_in.connect(sessions.begin, dispatch_uid="sessions.begin")
        user_logged_in.connect(time_zone.remember, dispatch_uid="time_zone.remember")
        user_logged_in.connect(second_factor.note_missing, dispatch_uid="second_factor.missing")
        authenticator_added.connect(second_factor.record_added, dispatch_uid="second_factor.added")
        authenticator_removed.connect(
            second_factor.record_removed, dispatch_uid="second_factor.removed"
        )
        # Django's own receiver fails with the sign-in when the disk is full.
        user_logged_in.disconnect(dispatch_uid="update_last_login")
        user_logged_in.connect(throttle.note_last_login, dispatch_uid="throttle.note_last_login")


def record_returned(broker: Any, returned: Any, at: Any, **_: Any) -> None:
    """Record which of these messages are replayed ones that died again."""
    # Imported by the few processes that park.
    from delayboard.dead_letters.replay import outcome

    outcome.record_returned(broker, returned, at)
