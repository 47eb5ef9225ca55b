from __future__ import annotations

from django.apps import AppConfig


class DelayboardConfig(AppConfig):
    name = "delayboard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from delayboard import checks

        assert checks
