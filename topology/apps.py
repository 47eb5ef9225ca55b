from __future__ import annotations

from django.apps import AppConfig


class TopologyConfig(AppConfig):
    name = "topology"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from axes.signals import user_locked_out
        from django.contrib.auth import signals

        from topology import audit

        signals.user_logged_in.connect(audit.signed_in, dispatch_uid="audit.signed_in")
        signals.user_logged_out.connect(audit.signed_out, dispatch_uid="audit.signed_out")
        signals.user_login_failed.connect(audit.refused, dispatch_uid="audit.refused")
        user_locked_out.connect(audit.locked_out, dispatch_uid="audit.locked_out")
