"""Waits a limited time for a call; after that the call continues in a thread nobody joins."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Found = TypeVar("Found")


def run_in_background(call: Callable[[], Found], name: str) -> Future[Found]:
    """Begin a call whose result, or error, the future will hold.

    Unlike an executor's, its thread holds up neither the end of a block nor of the process.
    """
    future: Future[Found] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            # Whatever the error is, the caller that waits must get it.
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future
