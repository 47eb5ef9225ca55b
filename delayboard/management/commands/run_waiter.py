"""The former name of run_forwarder, for one release."""

from __future__ import annotations

from delayboard.management.commands import run_forwarder


class Command(run_forwarder.Command):
    pass
