"""500 open pages of Now: the share of a core that the served site takes for them.

Their numbers change each second, so that each page is fetched as often as it may be.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.bench.figures import say

PAGES = 500
TOPOLOGIES = 30
SECONDS = 60
# All of a second's openings are answered before the next ones come.
AT_ONCE = 25


def measure(folder: Path) -> None:
    """Serve an own database; its numbers change each second, as those of a site at work."""
    cookie, port = _fill(), _free_port()
    command = [sys.executable, "manage.py", "serve", "--port", str(port)]
    site = subprocess.Popen(command, env={**os.environ, "ALLOWED_HOSTS": "127.0.0.1"})
    try:
        page = _page(f"http://127.0.0.1:{port}/", cookie)
        asyncio.run(_watch(page, f"127.0.0.1:{port}", cookie, site.pid))
    finally:
        site.terminate()
        site.wait()


def _fill() -> str:
    """Thirty topologies with traffic, and the cookie of somebody who is signed in."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from tests.builders import make_broker
    from tests.delayboard.test_now_speed import fill

    call_command("migrate", verbosity=0)
    fill(make_broker(), TOPOLOGIES)
    client = Client()
    client.force_login(User.objects.create(username="bench", is_superuser=True))
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={client.cookies[name].value}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _page(url: str, cookie: str) -> str:
    """The page, when the site has started."""
    request = urllib.request.Request(url, headers={"Cookie": cookie})
    for _ in range(300):
        try:
            with urllib.request.urlopen(request) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the site does not start")


async def _watch(page: str, host: str, cookie: str, pid: int) -> None:
    path = re.findall(r'data-live-url="([^"]+)"', page)[0]
    counts = [0, 0, 0]
    began = _cpu_seconds(pid)
    sockets: list[asyncio.Task[None]] = []
    for _ in range(PAGES // AT_ONCE):
        ready = [asyncio.Event() for _ in range(AT_ONCE)]
        sockets += [
            asyncio.create_task(_open(f"ws://{host}{path}", host, cookie, counts, event))
            for event in ready
        ]
        await asyncio.gather(*(event.wait() for event in ready))
    say(f"opening {PAGES} pages, CPU ms of each", (_cpu_seconds(pid) - began) * 1000 / PAGES, "")
    counts[:] = [0, 0, 0]
    began, at = _cpu_seconds(pid), time.perf_counter()
    changing = asyncio.create_task(asyncio.to_thread(_change, SECONDS))
    await asyncio.sleep(SECONDS)
    share = (_cpu_seconds(pid) - began) / (time.perf_counter() - at)
    await changing
    for one in sockets:
        one.cancel()
    await asyncio.gather(*sockets, return_exceptions=True)
    note = f"{counts[0] / SECONDS:.0f} messages and {counts[1] / SECONDS / 1000:.0f} kB a second"
    note += f", {counts[2]} pages fetched again"
    say(f"{PAGES} open pages, share of a core", share, f"{note}; under 0.5 is wanted")


async def _open(url: str, host: str, cookie: str, counts: list[int], ready: asyncio.Event) -> None:
    from websockets.asyncio.client import connect

    headers = {"Cookie": cookie, "Origin": f"http://{host}"}
    async with connect(url, additional_headers=headers, max_size=None) as connection:
        shown, fetched_at = "", 0.0
        async for message in connection:
            counts[0] += 1
            counts[1] += len(message)
            ready.set()
            news = json.loads(message)
            pause = max(1.0, news["within"])
            if shown and news["version"] != shown and time.monotonic() > fetched_at + pause:
                await asyncio.sleep(random.random() * news["within"])
                began = time.monotonic()
                await _fetch(host, cookie, news["version"])
                fetched_at = time.monotonic() + max(0.0, 9 * (time.monotonic() - began) - pause)
                counts[2] += 1
            shown = news["version"]


async def _fetch(host: str, cookie: str, version: str) -> None:
    """As live.js does."""
    lines = ("GET / HTTP/1.1", f"Host: {host}", f"Cookie: {cookie}", f"X-Refresh: {version}")
    request = "\r\n".join((*lines, "Accept-Encoding: gzip", "Connection: close", "", ""))
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(request.encode())
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    writer.close()


def _change(seconds: int) -> None:
    """Each second, other counts of the newest minute of a third of the topologies."""
    from django.db import connection
    from django.db.models import F
    from django.utils import timezone

    from analytics.models import Minute
    from topology.models import Topology

    keys: Sequence[int] = list(Topology.objects.values_list("pk", flat=True))
    for number in range(seconds):
        minute = timezone.now().replace(second=0, microsecond=0)
        for key in keys[number % 3 :: 3]:
            row, _ = Minute.objects.get_or_create(topology_id=key, minute_at=minute)
            Minute.objects.filter(pk=row.pk).update(entered=F("entered") + 7, left=F("left") + 7)
        time.sleep(1)
    connection.close()


def _cpu_seconds(pid: int) -> float:
    """Used by a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks
