"""The site and the worker on a full disk: reading and signing in go on, the log is short."""

from __future__ import annotations

import http.cookiejar
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection

from tests.builders import eventually, make_broker, make_user
from tests.delayboard.builders import a_message, parked
from tests.faults import cramped
from tests.faults.processes import environment, started
from topology.models import Role

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]
DISK_BYTES = 24_000_000
PASSWORD = "a long enough password"
FULL = "The disk is full. Free space on the disk and try again."
# Copies the database into the small disk, and runs both parts of Delayboard there.
BOTH = 'cp "$1"/* "$DELAYBOARD_VAR" && shift && { "$@" worker & exec "$@" serve --port "$PORT"; }'


class Answer(NamedTuple):
    status: int
    url: str
    text: str


@dataclass
class Visitor:
    """A browser without JavaScript."""

    site: str
    jar: http.cookiejar.CookieJar = field(default_factory=http.cookiejar.CookieJar)

    def get(self, path: str) -> Answer:
        return self._open(urllib.request.Request(self.site + path))

    def post(self, path: str, **fields: str) -> Answer:
        token = next((cookie.value for cookie in self.jar if cookie.name == "csrftoken"), "")
        body = urlencode({"csrfmiddlewaretoken": token or "", **fields}).encode()
        return self._open(urllib.request.Request(self.site + path, body))

    def sign_in(self, password: str = PASSWORD) -> Answer:
        self.get("/login/")
        return self.post("/login/", username="ada", password=password)

    def _open(self, request: urllib.request.Request) -> Answer:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        try:
            with opener.open(request, timeout=60) as answer:
                return Answer(answer.status, answer.url, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.url, error.read().decode())


@dataclass
class Installation:
    process: Popen[bytes]
    site: str
    disk: Path
    lines: list[str] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.decode() for line in self.process.stdout)

    def is_up(self) -> bool:
        try:
            return Visitor(self.site).get("/login/").status == 200
        except OSError:
            return False


@pytest.fixture
def parked_message_address() -> str:
    """The page of a parked message; there is an account, too."""
    ada = make_user("ada", Role.ADMIN)
    ada.password = PBKDF2PasswordHasher().encode(PASSWORD, "salt")
    ada.save()
    broker = make_broker()
    (parked_message,) = parked(broker, a_message(b"{}"))
    return f"/dead-letters/{broker.slug}/parked/{parked_message.pk}/"


@pytest.fixture
def installed(parked_message_address: str, tmp_path: Path) -> Iterator[Installation]:
    seed, var = tmp_path / "seed", tmp_path / "var"
    seed.mkdir()
    var.mkdir()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(seed / "delayboard.sqlite3")])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {
        **environment(),
        "CREDENTIAL_KEYS": " ".join(settings.CREDENTIAL_KEYS),
        "DELAYBOARD_VAR": str(var),
        "PORT": str(port),
    }
    del variables["DATABASE_URL"], variables["EVENT_LOG"]
    within = (*cramped.small_disk(var, DISK_BYTES), "sh", "-c", BOTH, "sh", str(seed))
    with started(variables=variables, within=within) as process:
        found = Installation(process, f"http://127.0.0.1:{port}", Path())
        reading = threading.Thread(target=found.read, daemon=True)
        reading.start()
        found.disk = cramped.seen_from_outside(process, var)
        eventually(found.is_up, "the site answers", seconds=180)
        eventually(lambda: "The worker runs.\n" in found.lines, "the worker runs", seconds=180)
        yield found
    reading.join(60)


def test_people_sign_in_and_read_and_are_told_why_they_cannot_act(
    installed: Installation, parked_message_address: str
) -> None:
    before = Visitor(installed.site)
    assert before.sign_in().url.endswith("/")
    cramped.fill(installed.disk)
    eventually(
        lambda: any(FULL in line for line in installed.lines), "the worker says it", seconds=180
    )
    later = Visitor(installed.site)
    assert "correct username and password" in later.sign_in("a wrong password").text
    assert later.sign_in().status == 200
    parked_list = parked_message_address.split("parked/")[0] + "parked/"
    for visitor in (before, later):
        for path in ("/", "/dead-letters/", "/brokers/", "/replays/", "/scheduled/", parked_list):
            answer = visitor.get(path)
            assert (answer.status, answer.url) == (200, installed.site + path)
        # A whole message is shown only with its entry in the audit log.
        refused = visitor.get(parked_message_address)
        assert refused.status == 503
        assert FULL in refused.text
        broker = parked_list.removesuffix("/parked/").rpartition("/")[2]
        view = {"list": "parked_messages", "name": "mine", "q": "reason:expired"}
        failed = visitor.post(f"/preferences/views/?broker={broker}", **view)
        assert (failed.status, FULL in failed.text) == (503, True)
    assert "Delayboard cannot write the audit log now" in later.get(parked_list).text
    cramped.empty(installed.disk)
    assert eventually(
        lambda: later.get(parked_message_address).status == 200, "it goes on", seconds=60
    )
    log = "".join(installed.lines)
    assert "Traceback" not in log
    assert len(re.findall(r"The worker cannot continue: " + FULL, log)) <= 2
    assert len(re.findall(f"GET {parked_message_address} by ada failed", log)) == 1
