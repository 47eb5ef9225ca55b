"""Asks the cluster of the environment for an answer, before a job begins there.

Spark itself tries a silent master for a minute and a half, and a silent Connect server for ten.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import TypeAlias
from urllib.parse import urlsplit

from analytics.launch import LaunchError

ANSWER_SECONDS = 10
CONNECT_PORT, MASTER_PORT, KUBERNETES_PORT = 15002, 7077, 443
# First bytes of a connection by HTTP/2, whose sides begin with their settings (RFC 9113, 3.4).
HTTP_2_BEGINS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
FRAME_HEAD_BYTES, SETTINGS = 9, 4
# Types of messages in Spark's org.apache.spark.network.protocol.Message.
STREAM_REQUEST, STREAM_FAILURE = 6, 8
LONGEST_ANSWER = 4096
NO_STREAM = b"/files/delayboard"

Ask: TypeAlias = Callable[[socket.socket], None]


def check() -> None:
    """Raises LaunchError, within eleven seconds, with the address of SPARK_REMOTE or SPARK_MASTER
    where nobody answers as such a server does. Of other masters, such as YARN, no address is known.
    """
    if remote := os.environ.get("SPARK_REMOTE"):
        is_safe = any(part in remote for part in (";use_ssl=true", ";token="))
        # The rest has the token.
        _check("SPARK_REMOTE", [remote.partition("/;")[0]], CONNECT_PORT, _ask_connect, is_safe)
    elif (master := os.environ.get("SPARK_MASTER", "")).startswith("spark://"):
        urls = [f"spark://{one}" for one in master.removeprefix("spark://").split(",")]
        _check("SPARK_MASTER", urls, MASTER_PORT, _ask_master)
    elif master.startswith("k8s://"):
        address = master.removeprefix("k8s://")
        url = address if "://" in address else f"https://{address}"
        _check("SPARK_MASTER", [url], KUBERNETES_PORT, lambda connected: None)


def _check(setting: str, urls: Sequence[str], port: int, ask: Ask, is_safe: bool = False) -> None:
    """One of them has to answer."""
    try:
        addresses = [(parts.hostname or "", parts.port or port) for parts in map(urlsplit, urls)]
    except ValueError as error:
        raise LaunchError(
            f"{setting} has the address {urls[0]}, which is none: {error}."
        ) from error
    answers: SimpleQueue[str] = SimpleQueue()
    for address in addresses:
        # Nobody can stop the resolution of a name, so a thread that waits for it is left behind.
        Thread(target=_put_answer, args=(answers, address, ask, is_safe), daemon=True).start()
    end, why = monotonic() + ANSWER_SECONDS + 0.5, f"no answer within {ANSWER_SECONDS} seconds"
    for _ in urls:
        try:
            why = answers.get(timeout=max(end - monotonic(), 0))
        except Empty:
            break
        if not why:
            return
    raise LaunchError(
        f"Spark at {', '.join(urls)} does not answer: {why}. Start it, or correct {setting}."
    )


def _put_answer(
    answers: SimpleQueue[str], address: tuple[str, int], ask: Ask, is_safe: bool
) -> None:
    """Put why there was none; "" for an answer."""
    try:
        with socket.create_connection(address, ANSWER_SECONDS) as connected:
            if is_safe:
                context = ssl.create_default_context()
                context.set_alpn_protocols(["h2"])
                with context.wrap_socket(connected, server_hostname=address[0]) as covered:
                    ask(covered)
            else:
                ask(connected)
    except TimeoutError:
        answers.put(f"no answer within {ANSWER_SECONDS} seconds")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "verify_message", None) or getattr(error, "strerror", None)
        answers.put(reason.lower() if reason else str(error))
    else:
        answers.put("")


def _ask_connect(connected: socket.socket) -> None:
    connected.sendall(HTTP_2_BEGINS)
    head = _read(connected, FRAME_HEAD_BYTES)
    if head[3:4] != bytes([SETTINGS]):
        raise OSError("it is no server of Spark Connect")


def _ask_master(connected: socket.socket) -> None:
    """Ask for a file that no master has, which needs no password: it says that it has none."""
    name = struct.pack(">i", len(NO_STREAM)) + NO_STREAM
    connected.sendall(struct.pack(">qb", 9 + len(name), STREAM_REQUEST) + name)
    head = _read(connected, 9)
    if head[8:] != bytes([STREAM_FAILURE]):
        raise OSError("it is no master of Spark")
    # To the end: bytes that nobody read would reset the connection, which the master logs.
    _read(connected, min(struct.unpack(">q", head[:8])[0], LONGEST_ANSWER) - 9)


def _read(connected: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length and (piece := connected.recv(length - len(found))):
        found += piece
    return found
