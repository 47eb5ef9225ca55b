"""A TCP proxy between Delayboard and RabbitMQ, with the faults that networks have.

Each direction of each connection has one fault at a time. A test sets faults from its own thread;
the proxy runs on another.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["to broker", "to client"]
CHUNK = 16_384
# Small, so that a slow reader slows the writer and not only the proxy.
BUFFER = 32_768


@dataclass(frozen=True)
class Fault:
    """`latency` in seconds, `rate` in bytes a second.

    `swallows`: what is sent, the end of a connection too, is read and never passed on: with one
    direction a connection is half open. `silent_after`: of what is sent from now on, so many bytes
    are passed on, then nothing is read any more.
    """

    swallows: bool = False
    latency: float = 0.0
    rate: int | None = None
    silent_after: int | None = None


NONE = Fault()


@dataclass(eq=False)
class _Connection:
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    faults: dict[Direction, Fault]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def cut(self) -> None:
        """End both sides with a reset."""
        for writer in (self.client, self.broker):
            with suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        for task in self.tasks:
            task.cancel()


class Proxy:
    """Listens at `port` of 127.0.0.1 and passes all on to the port of the broker."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._faults: dict[Direction, Fault] = {"to broker": NONE, "to client": NONE}
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()

    def set(self, direction: Direction, fault: Fault, *, also_new: bool = True) -> None:
        """Have the fault from now on, in the connections that are there or also in new ones."""

        def act() -> None:
            if also_new:
                self._faults[direction] = fault
            for connection in self._connections:
                connection.faults[direction] = fault

        self._call(act)

    def heal(self) -> None:
        self.set("to broker", NONE)
        self.set("to client", NONE)

    def reset(self) -> int:
        """Reset all connections; how many that were."""
        number = len(self._connections)

        def act() -> None:
            for connection in [*self._connections]:
                connection.cut()

        self._call(act)
        return number

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        thread.start()
        server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        try:
            yield self
        finally:
            self._call(server.close)
            self.reset()
            self._call(lambda: None)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)
            self._loop.close()

    def _call(self, act: Callable[[], None]) -> None:
        """Act on the proxy's own thread, and wait for it."""

        async def call() -> None:
            act()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    async def _listen(self) -> asyncio.Server:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self.port = listening.getsockname()[1]
        return await asyncio.start_server(self._accept, sock=listening, limit=CHUNK)

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            sock.setblocking(False)
            await self._loop.sock_connect(sock, ("127.0.0.1", self._target))
            from_broker, broker = await asyncio.open_connection(sock=sock, limit=CHUNK)
        except OSError:
            client.transport.abort()
            return
        connection = _Connection(client, broker, dict(self._faults))
        self._connections.add(connection)
        for source, target, direction in (
            (reader, broker, "to broker"),
            (from_broker, client, "to client"),
        ):
            passing = self._pass(connection, source, target, direction)  # type: ignore[arg-type]
            connection.tasks.append(self._loop.create_task(passing))
        await asyncio.wait(connection.tasks)
        connection.cut()
        self._connections.discard(connection)

    async def _pass(
        self,
        connection: _Connection,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        """Until the source ends; a half-open connection ends only with the proxy."""
        sent: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = self._loop.create_task(self._send(sent, target))
        connection.tasks.append(sending)
        data = b"."
        while data:
            try:
                data = await source.read(CHUNK)
            except OSError:
                data = b""
            fault = connection.faults[direction]
            if fault.silent_after is not None:
                data = data[: fault.silent_after]
                left = fault.silent_after - len(data)
                connection.faults[direction] = Fault(silent_after=left)
                if not left:
                    sent.put_nowait((self._loop.time(), data))
                    await asyncio.Event().wait()
            if fault.rate:
                await asyncio.sleep(len(data) / fault.rate)
            if not fault.swallows:
                sent.put_nowait((self._loop.time() + fault.latency, data))
        await sending

    async def _send(
        self, sent: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter
    ) -> None:
        """Send each at its time; nothing (b"") ends the connection."""
        data = b"."
        with suppress(OSError):
            while data:
                due, data = await sent.get()
                await asyncio.sleep(due - self._loop.time())
                target.write(data)
                await target.drain()
            target.close()
