"""Serves the site with uvicorn."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import CommandParser

from topology.management.command import BoardCommand


class Command(BoardCommand):
    requires_system_checks = "__all__"
    help = "Serve the site, WebSockets included."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
        parser.add_argument(
            "--port", type=int, default=settings.SERVE_PORT, help="default: PORT, else 8000"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        # whitenoise warns about a folder that is missing, even when it serves from the packages.
        Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
        # Whitenoise streams files synchronously, and Django warns for each one.
        warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume")
        uvicorn.run(
            "delayboard.asgi:application",
            host=options["host"],
            port=options["port"],
            # Its own handlers would write each repetition of a failure.
            log_level=None,
            log_config=None,
            lifespan="on",
            timeout_graceful_shutdown=3,
            # delayboard/asgi.py reads them.
            proxy_headers=False,
        )
