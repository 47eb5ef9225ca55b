"""Waiting for a call only so long: it goes on in a thread that nobody joins."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Found = TypeVar("Found")


def in_background(call: Callable[[], Found], name: str) -> Future[Found]:
    """Begin a call whose result, or error, the future will hold.

    Unlike an executor's, its thread holds up neither the end of a block nor of the process.
    """
    future: Future[Found] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            # Whatever it was, whoever waits must be told.
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future
