"""Runs the demo's shop and its flaky consumer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand

from delayboard.demo.seed import DEMO_BROKER
from delayboard.demo.traffic import send_orders, work_on_orders
from topology.broker.address import Address
from topology.broker.errors import BrokerError
from topology.models import Broker

PAUSE_SECONDS = 2.0


class Command(BaseCommand):
    help = "Send orders through the demo topology and work on them, flakily, until stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        address = Broker.objects.get(name=DEMO_BROKER).address
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        parts = [send_orders, work_on_orders]
        threads = [threading.Thread(target=self._keep, args=(p, address, stop)) for p in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _keep(
        self,
        part: Callable[[Address, threading.Event], None],
        address: Address,
        stop: threading.Event,
    ) -> None:
        while not stop.is_set():
            try:
                part(address, stop)
            except BrokerError as error:
                self.stderr.write(str(error))
                stop.wait(PAUSE_SECONDS)
