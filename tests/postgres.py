"""A PostgreSQL cluster for the length of a test run: own folder, own port, no system service."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = Path("/usr/lib/postgresql")
USER = "delayboard"


def newest_programs() -> Path:
    """Return the folder of the newest installed server. Raises FileNotFoundError."""
    found = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda file: int(file.parts[-3]))
    if not found:
        raise FileNotFoundError(f"PostgreSQL is not installed: no {PROGRAMS}/*/bin/initdb")
    return found[-1].parent


def account() -> str | None:
    """Return whom to run the server as, or None for ourselves: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def as_account(name: str | None, *command: str) -> list[str]:
    """Return `command`, run by `name`, and ended by the kernel when its parent ends."""
    to_other = () if name is None else (f"--reuid={name}", f"--regid={pwd.getpwnam(name).pw_gid}")
    groups = () if name is None else ("--clear-groups",)
    return ["setpriv", *to_other, *groups, "--pdeathsig", "INT", *command]


def free_port() -> int:
    """Return a TCP port on 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def private_cluster(*, with_tls: bool = False) -> Iterator[str]:
    """Yield the DATABASE_URL of a fresh cluster; stop and remove it afterwards.

    The address of one with TLS has options that check its certificate.

    Raises FileNotFoundError when PostgreSQL is not installed, CalledProcessError when the cluster
    cannot be made, RuntimeError with its log when it does not start.
    """
    programs, name = newest_programs(), account()
    folder = Path(tempfile.mkdtemp(prefix="delayboard-postgres-"))
    try:
        password = secrets.token_hex(16)
        (folder / "password").write_text(password)
        if name is not None:
            for path in (folder, folder / "password"):
                shutil.chown(path, name)
        initialise(programs, folder, name)
        port = free_port()
        settings, query = encrypt(folder, name) if with_tls else ({}, "")
        with running(programs, folder, name, port, settings):
            yield f"postgresql://{USER}:{password}@127.0.0.1:{port}/postgres{query}"
    finally:
        shutil.rmtree(folder)


def delete_rows() -> None:
    """Let a test that empties the tables delete their rows: to truncate makes their files anew.

    As a replica does, no foreign key is looked up: all tables are emptied.
    """
    from django.db.backends.postgresql.operations import DatabaseOperations

    def sql_flush(self: DatabaseOperations, style: Any, tables: Any, **options: bool) -> list[str]:
        assert not any(options.values()), options
        deletions = (f"DELETE FROM {self.quote_name(table)}" for table in tables)
        return ["; ".join(("SET LOCAL session_replication_role = replica", *deletions))]

    DatabaseOperations.sql_flush = sql_flush  # type: ignore[assignment]


def initialise(programs: Path, folder: Path, name: str | None) -> None:
    """Make the cluster's files. Raises CalledProcessError."""
    options = ("--encoding=UTF8", "--locale=C.UTF-8", "--auth=scram-sha-256", "--no-sync")
    subprocess.run(
        as_account(
            name,
            str(programs / "initdb"),
            f"--pgdata={folder / 'data'}",
            f"--username={USER}",
            f"--pwfile={folder / 'password'}",
            *options,
        ),
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def encrypt(folder: Path, name: str | None) -> tuple[dict[str, object], str]:
    """Write a certificate; the server's settings for it, and the options of an address."""
    from tests.faults.odd_node import self_signed

    self_signed(folder)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    key.chmod(0o600)
    if name is not None:
        shutil.chown(key, name)
    settings = {"ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": key}
    return settings, f"?sslmode=verify-full&sslrootcert={certificate}"


@contextmanager
def running(
    programs: Path, folder: Path, name: str | None, port: int, more: Mapping[str, object]
) -> Iterator[None]:
    """Run the server while the block runs. Raises RuntimeError with its log."""
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": folder,
        "fsync": "off",
        "max_connections": 300,
        **more,
    }
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            as_account(name, str(programs / "postgres"), "-D", str(folder / "data"), *options),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        ready = [str(programs / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={port}"]
        for _ in range(300):
            if server.poll() is not None:
                raise RuntimeError(f"PostgreSQL ended while it started:\n{log.read_text()}")
            if subprocess.run([*ready, "--timeout=1"]).returncode == 0:
                break
        else:
            raise RuntimeError(f"PostgreSQL does not answer:\n{log.read_text()}")
        yield
    finally:
        # SIGINT is its fast shutdown: sessions are ended, not waited for.
        server.send_signal(signal.SIGINT)
        server.wait(60)
