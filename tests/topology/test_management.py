from __future__ import annotations

import http.client
import re
import ssl
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import requests
import responses
import urllib3
from pika.exceptions import ChannelClosedByBroker

from tests.topology.builders import MANAGEMENT, an_address
from topology.broker.amqp.connection import translate_errors
from topology.broker.errors import (
    BrokerError,
    Conflict,
    NotFound,
    Refused,
    Unreachable,
    Unsupported,
    alarm_sentence,
)
from topology.broker.management.client import Management, path
from topology.definitions import Queue

PASSWORD = "hunter2-ü"


@pytest.fixture
def api() -> Iterator[responses.RequestsMock]:
    with responses.RequestsMock() as mock:
        yield mock


@pytest.fixture
def management() -> Iterator[Management]:
    with Management(an_address(password=PASSWORD)) as session:
        yield session


def url(*parts: str) -> str:
    return MANAGEMENT + path(*parts)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("queues", "/"), "/api/queues/%2F"),
        (("queues", "/", "a/b"), "/api/queues/%2F/a%2Fb"),
        (("queues", "v", "ü %2F"), "/api/queues/v/%C3%BC%20%252F"),
        (("queues", "v", "a?b#c&d"), "/api/queues/v/a%3Fb%23c%26d"),
        (("queues", "v", "..a"), "/api/queues/v/..a"),
    ],
)
def test_every_part_of_a_path_is_quoted_and_stays_so_on_the_wire(
    parts: tuple[str, ...], expected: str
) -> None:
    assert path(*parts) == expected
    assert requests.Request("GET", MANAGEMENT + path(*parts)).prepare().path_url == expected


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_http_resolves_is_never_sent(management: Management, name: str) -> None:
    with pytest.raises(Unsupported, match="cannot address an object named"):
        management.delete_queue(name, only_if_empty=False)


def test_a_call_names_the_user_in_utf_8_and_follows_no_redirect(
    api: responses.RequestsMock, management: Management
) -> None:
    api.get(url("overview"), status=302, headers={"Location": "http://elsewhere.test/"})
    with pytest.raises(Unreachable, match="answered 302"):
        management.overview()
    given = api.calls[0].request.headers["Authorization"]
    assert b64decode(given.removeprefix("Basic ")).decode() == f"ann:{PASSWORD}"


@pytest.mark.parametrize(
    ("status", "error", "sentence"),
    [
        (400, Conflict, "RabbitMQ reported: inequivalent arg"),
        (401, Refused, "refused the user “ann” .*Check the password"),
        (403, Refused, "the permissions on “/”"),
        (404, NotFound, "found no such object"),
        (405, Conflict, "RabbitMQ reported"),
        (409, Conflict, "RabbitMQ reported"),
        (429, Unreachable, "answered 429"),
        (500, Unreachable, "answered 500: inequivalent arg"),
        (503, Unreachable, "answered 503"),
    ],
)
@pytest.mark.parametrize(
    "body", ['{"reason": "inequivalent arg"}', "[]", '"inequivalent arg"', "{}"]
)
def test_every_status_has_its_error_whatever_the_body_is(
    api: responses.RequestsMock,
    management: Management,
    status: int,
    error: type[BrokerError],
    sentence: str,
    body: str,
) -> None:
    api.get(url("queues", "/", "work"), body, status=status, content_type="application/json")
    if "reason" not in body:
        sentence = sentence.partition(": inequivalent")[0].partition(" .*")[0]
    with pytest.raises(error, match=sentence) as raised:
        management.queue("work")
    assert type(raised.value) is error
    assert raised.value.retry_helps == (error is Unreachable)


@pytest.mark.parametrize(
    ("place", "kind"),
    [(("overview",), "application/json"), (("queues", "/", "work"), "text/html")],
)
def test_a_404_of_another_server_is_no_missing_object(
    api: responses.RequestsMock, management: Management, place: tuple[str, ...], kind: str
) -> None:
    """Other plugins of RabbitMQ answer with the same JSON on their ports."""
    api.get(url(*place), '{"reason": "Not Found"}', status=404, content_type=kind)
    look = management.overview if len(place) == 1 else lambda: management.queue("work")
    with pytest.raises(Unreachable, match="has no management API"):
        look()


def test_a_queue_that_goes_while_it_is_looked_at_is_gone(
    api: responses.RequestsMock, management: Management
) -> None:
    """Of its two looks at the queue the node found it at the first only, and answered 500."""
    where = url("queues", "/", "work")
    api.get(where, json={"error": "Internal Server Error"}, status=500)
    api.get(where, json={"reason": "Object Not Found"}, status=404)
    with pytest.raises(NotFound):
        management.queue("work")


def test_what_changes_something_is_asked_for_once(
    api: responses.RequestsMock, management: Management
) -> None:
    api.put(url("queues", "/", "work"), json={}, status=500)
    with pytest.raises(Unreachable):
        management.declare_queue(Queue("work"))
    assert len(api.calls) == 1


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("Not management user", "Add the tag “management”"),
        ("User not authorised to access virtual host", "no permissions on the virtual host “/”"),
        ("Login failed", "Check the user name and the password"),
        ("Not_Authorized", "Check the user name and the password"),
        ("something new", r"\(something new\)\. Check the password, the tag"),
    ],
)
def test_a_401_is_told_apart_by_its_reason(
    api: responses.RequestsMock, management: Management, reason: str, sentence: str
) -> None:
    api.get(url("overview"), json={"error": "not_authorised", "reason": reason}, status=401)
    with pytest.raises(Refused, match=sentence):
        management.overview()


def test_a_vhost_that_is_not_there_or_not_seen_is_no_missing_queue(
    api: responses.RequestsMock, management: Management
) -> None:
    api.get(url("queues", "/"), json={"error": "not_found", "reason": "Not Found"}, status=404)
    with pytest.raises(
        Refused, match=r"The virtual host “/” does not exist at .*, or the user “ann” has"
    ):
        management.queues()
    unknown = {"error": "not_found", "reason": "vhost_not_found"}
    api.put(url("queues", "/", "q"), json=unknown, status=404)
    with pytest.raises(Refused, match="The virtual host “/” does not exist"):
        management.declare_queue(Queue("q"))
    api.get(url("queues", "/", "q"), json={"reason": "Not Found"}, status=404)
    with pytest.raises(NotFound):
        management.queue("q")


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (
            "Cannot declare a queue 'queue 'q' in vhost '/'' of type 'rabbit_stream_queue' on "
            "node 'a@b': the corresponding feature flag is disabled",
            "The feature flag stream_queue is not enabled",
        ),
        (
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type "
            "'sand'\"",
            "no queue type “sand”",
        ),
        ("invalid exchange type 'x-random'", "no exchange type “x-random”"),
        (
            "invalid arg 'x-queue-mode' for queue 'q' in vhost '/' of queue type "
            "rabbit_quorum_queue",
            "a quorum queue has no argument “x-queue-mode”",
        ),
    ],
)
def test_what_a_broker_cannot_do_is_no_conflict(
    api: responses.RequestsMock, management: Management, reason: str, sentence: str
) -> None:
    answer = {"error": "bad_request", "reason": reason}
    api.put(url("queues", "/", "q"), json=answer, status=400)
    with pytest.raises(Unsupported, match=sentence):
        management.declare_queue(Queue("q"))
    with pytest.raises(Unsupported, match=sentence), translate_errors(an_address()):
        raise ChannelClosedByBroker(406, f"PRECONDITION_FAILED - {reason}")


@pytest.mark.parametrize(
    ("alarms", "sentence"),
    [
        (
            (),
            "blocks publishes until the alarm ends. To end it, free memory or disk space",
        ),
        (("memory on a@b",), r"\(memory on a@b\) .*, consume or delete messages"),
        (("disk space on a@b",), "free disk space"),
        (("memory on a", "disk space on b"), "consume or delete.*; free disk space"),
    ],
)
def test_an_alarm_says_what_ends_it(alarms: tuple[str, ...], sentence: str) -> None:
    assert re.search(sentence, alarm_sentence(alarms))


@pytest.mark.parametrize(
    ("body", "kind"),
    [("<html>", "text/html"), ("{", "application/json"), ("\xff", "application/json")],
)
def test_an_answer_that_is_no_json_is_no_management_api(
    api: responses.RequestsMock, management: Management, body: str, kind: str
) -> None:
    api.get(url("overview"), body.encode("latin-1"), content_type=kind)
    with pytest.raises(
        Unreachable, match=rf"The answer from {MANAGEMENT} does not come from a management API"
    ):
        management.overview()


@pytest.mark.parametrize("body", ["[]", "5", "null", '"text"', ""])
def test_an_answer_of_another_shape_is_told_from_an_empty_one(
    api: responses.RequestsMock, management: Management, body: str
) -> None:
    api.get(url("overview"), body, content_type="application/json")
    with pytest.raises(Unreachable, match="an unexpected answer"):
        management.overview()


@pytest.mark.parametrize("body", ["{}", "[1]", "[[]]", "null"])
def test_a_list_of_something_else_than_tables_is_refused(
    api: responses.RequestsMock, management: Management, body: str
) -> None:
    calls: list[Callable[[], Any]] = [management.queues, management.exchanges, management.bindings]
    for name, call in zip(("queues", "exchanges", "bindings"), calls, strict=True):
        api.get(url(name, "/"), body, content_type="application/json")
        with pytest.raises(Unreachable, match="an unexpected answer"):
            call()


def refused() -> requests.exceptions.ConnectionError:
    """As requests and urllib3 wrap it."""
    failed = urllib3.exceptions.NewConnectionError(cast(Any, None), "x")
    failed.__cause__ = ConnectionRefusedError(111, "x")
    return requests.exceptions.ConnectionError(
        urllib3.exceptions.MaxRetryError(cast(Any, None), MANAGEMENT, failed)
    )


def answered(line: str) -> requests.exceptions.ConnectionError:
    error = http.client.BadStatusLine(line)
    return requests.exceptions.ConnectionError(urllib3.exceptions.ProtocolError("x", error))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (requests.exceptions.ConnectTimeout(), "did not answer in time"),
        (requests.exceptions.ReadTimeout(), "did not answer in time"),
        (requests.exceptions.SSLError(ssl.SSLError(1, "x")), "accepts no TLS connection"),
        (refused(), "Nothing listens at .* Check that RabbitMQ runs, and check the port"),
        (requests.exceptions.ConnectionError(ConnectionResetError()), "without an answer. Check"),
        (answered("\x15\x03\x01"), "needs TLS. Enter an address with https"),
        (answered("AMQP\x00"), "is for AMQP. Enter the port of the management API"),
        (
            requests.exceptions.ConnectionError(f"for ann:{PASSWORD}"),
            "does not answer. Check the address",
        ),
        (requests.exceptions.ChunkedEncodingError(), "does not answer. Check the address"),
        (requests.exceptions.InvalidURL(), "does not answer. Check the address"),
    ],
)
def test_a_network_that_fails_is_unreachable_and_the_password_stays_out_of_it(
    api: responses.RequestsMock,
    management: Management,
    error: requests.exceptions.RequestException,
    sentence: str,
) -> None:
    api.get(url("overview"), body=error)
    with pytest.raises(Unreachable, match=sentence) as raised:
        management.overview()
    assert PASSWORD not in str(raised.value)
    assert MANAGEMENT in str(raised.value)


@pytest.mark.parametrize(
    ("status", "body", "alarms"),
    [
        (200, {"status": "ok"}, []),
        (
            503,
            {"alarms": [{"resource": "disk", "node": "rabbit@a"}, {"resource": "memory"}]},
            ["disk on rabbit@a", "memory on None"],
        ),
        (503, {"status": "failed"}, ["an alarm without a name"]),
        (503, {"alarms": 5}, ["an alarm without a name"]),
        (503, {"alarms": ["disk"]}, ["an alarm without a name"]),
    ],
)
def test_alarms_are_named(
    api: responses.RequestsMock,
    management: Management,
    status: int,
    body: Any,
    alarms: list[str],
) -> None:
    api.get(url("health", "checks", "alarms"), json=body, status=status)
    assert management.alarms() == alarms


@pytest.mark.parametrize(("status", "body"), [(503, "[]"), (503, "<html>"), (500, "{}")])
def test_a_health_check_that_fails_otherwise_is_no_alarm(
    api: responses.RequestsMock, management: Management, status: int, body: str
) -> None:
    api.get(url("health", "checks", "alarms"), body, status=status, content_type="text/html")
    with pytest.raises(Unreachable):
        management.alarms()
