"""Requests run in threads that outlive them, each with its connection to the database."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import HttpCommunicator
from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from pytest_django import Settings

from delayboard import page_handler
from delayboard.page_handler import PageHandler
from tests.builders import eventually

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
SOON = 10.0
began, may_end = threading.Semaphore(0), threading.Semaphore(0)


@login_not_required
def describe_thread(request: HttpRequest) -> JsonResponse:
    connection.ensure_connection()
    return JsonResponse([threading.get_ident(), id(connection.connection)], safe=False)


@login_not_required
def wait(request: HttpRequest) -> HttpResponse:
    began.release()
    assert may_end.acquire(timeout=SOON)
    return describe_thread(request)


class WatchedResponse(HttpResponse):
    is_closed = False

    def close(self) -> None:
        super().close()
        WatchedResponse.is_closed = True


@login_not_required
def wait_and_watch(request: HttpRequest) -> HttpResponse:
    wait(request)
    return WatchedResponse()


urlpatterns = [
    path("thread/", describe_thread),
    path("wait/", wait),
    path("watched/", wait_and_watch),
]


@pytest.fixture
def handler(settings: Settings) -> Iterator[PageHandler]:
    settings.ROOT_URLCONF = __name__
    before = count_threads()
    handler = PageHandler()
    yield handler
    handler.end()
    assert eventually(lambda: count_threads() == before, "the threads end")


def count_threads() -> int:
    return sum(thread.name.startswith("page_") for thread in threading.enumerate())


def request(handler: PageHandler, address: str) -> HttpCommunicator:
    return HttpCommunicator(handler, "GET", address, headers=[(b"host", b"localhost")])


async def answer(communicator: HttpCommunicator) -> Any:
    found = await communicator.get_response(timeout=SOON)
    await communicator.wait(timeout=SOON)
    return json.loads(found["body"])


async def begin_to_wait(handler: PageHandler, address: str = "/wait/") -> HttpCommunicator:
    waiting = request(handler, address)
    await waiting.send_input({"type": "http.request", "body": b""})
    waiting.sent_request = True
    assert await asyncio.to_thread(began.acquire, timeout=SOON)
    return waiting


async def test_one_thread_and_one_connection_answer_one_request_after_the_other(
    handler: PageHandler,
) -> None:
    first = await answer(request(handler, "/thread/"))
    for _ in range(3):
        assert await answer(request(handler, "/thread/")) == first


async def test_requests_at_the_same_time_do_not_wait_for_each_other(
    handler: PageHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_handler, "KEPT_THREADS", 2)
    monkeypatch.setattr(page_handler, "WAIT_SECONDS", 0.01)
    before = count_threads()
    waiting = [await begin_to_wait(handler) for _ in range(3)]
    free = await answer(request(handler, "/thread/"))
    may_end.release(3)
    others = [await answer(one) for one in waiting]
    assert len({thread for thread, _ in (free, *others)}) == 4
    find = sync_to_async(eventually)
    assert await find(lambda: count_threads() == before + 2, "the other threads end")


async def test_a_request_gets_the_thread_of_a_busy_one_that_ends_soon(
    handler: PageHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_handler, "KEPT_THREADS", 1)
    monkeypatch.setattr(page_handler, "WAIT_SECONDS", SOON)
    busy = await begin_to_wait(handler)
    next_one = asyncio.create_task(answer(request(handler, "/thread/")))
    await asyncio.sleep(0)
    may_end.release()
    assert await answer(busy) == await next_one


async def test_a_client_that_leaves_keeps_its_thread_until_the_view_ends(
    handler: PageHandler,
) -> None:
    left = await begin_to_wait(handler)
    await left.send_input({"type": "http.disconnect"})
    first = await answer(request(handler, "/thread/"))
    assert await answer(request(handler, "/thread/")) == first
    may_end.release()
    await left.wait(timeout=SOON)
    assert await answer(request(handler, "/thread/")) != first


async def test_the_response_to_a_client_that_left_is_closed(handler: PageHandler) -> None:
    left = await begin_to_wait(handler, "/watched/")
    await left.send_input({"type": "http.disconnect"})
    await answer(request(handler, "/thread/"))
    may_end.release()
    await left.wait(timeout=SOON)
    assert WatchedResponse.is_closed
