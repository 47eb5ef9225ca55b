"""Imports what Delayboard's commands do, and opens nothing that two processes must not share."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import django
from django.core.checks import run_checks
from django.db.migrations.loader import MigrationLoader

from delayboard.management import commands

django.setup()
for module in iter_modules(commands.__path__):
    import_module(f"{commands.__name__}.{module.name}")
run_checks()
MigrationLoader(None)
