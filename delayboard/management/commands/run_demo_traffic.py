"""Runs the demo's flows of messages, its incidents and its history."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from django.core.management.base import CommandError
from django.db import connection

from delayboard.demo.history import show_history
from delayboard.demo.incidents import show_incidents
from delayboard.demo.removal import is_removed
from delayboard.demo.run import STEADY_SECONDS, pause
from delayboard.demo.script import DEMO_BROKER, FLOWS
from delayboard.demo.traffic import run_flow
from delayboard.worker.supervise import until_stopped
from topology.broker.errors import BrokerError
from topology.content.text import count_of
from topology.management.command import BoardCommand
from topology.models import Broker
from topology.operations.ownership import Refusal

Part: TypeAlias = Callable[[threading.Event], None]
JOIN_SECONDS = 1.5


class Command(BoardCommand):
    requires_system_checks = "__all__"
    help = "Publish and consume messages of the demo topologies, with some failures."

    def handle(self, *args: Any, **options: Any) -> None:
        broker = Broker.objects.filter(name=DEMO_BROKER).first()
        if broker is None:
            raise CommandError(f"There is no broker named “{DEMO_BROKER}”: make run adds it.")
        stop = until_stopped()
        try:
            broker.address  # noqa: B018
        except BrokerError as error:
            raise CommandError(str(error)) from error
        parts: list[Part] = [
            partial(show_history, broker),
            partial(show_incidents, broker),
            *(partial(run_flow, broker, flow) for flow in FLOWS),
        ]
        # A part that still sets up the reminders must not hold up the end.
        threads = [
            threading.Thread(target=self._keep, args=(part, broker, stop), daemon=True)
            for part in parts
        ]
        for thread in threads:
            thread.start()
        stop.wait()
        until = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _keep(self, part: Part, broker: Broker, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            if is_removed(broker):
                connection.close()
                stop.wait()
                break
            began = time.monotonic()
            try:
                part(stop)
            except (BrokerError, Refusal) as error:
                failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
                seconds = pause(failures)
                # A busy machine loses a connection now and then; the next one is opened at once.
                if failures > 1:
                    self.stderr.write(
                        f"{error} The demo goes on in {count_of(round(seconds), 'second')}."
                    )
                stop.wait(seconds)
