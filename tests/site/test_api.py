"""The API's frame: problems, idempotency, cursors, documents of commands; who may what."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import OperationalError
from django.utils import timezone
from pytest_django import Settings

from analytics.models import Annotation, LogImport, ScheduledMessage
from delayboard.api import door
from delayboard.api.site import make_document
from delayboard.dead_letters.replay import summary
from delayboard.dead_letters.search import index
from delayboard.models import (
    ApiAnswer,
    ApiToken,
    ParkedChange,
    ParkedMessage,
    Parking,
    Publication,
    PublishJob,
    ReplayBatch,
    ScheduledChange,
)
from tests.builders import make_broker, make_pair, make_user
from tests.delayboard.builders import parked
from tests.site.api_client import ApiClient, api_of
from tests.site.page_setup import draft, know
from topology import work
from topology.broker.errors import OutcomeUnknown
from topology.message import Message, Properties
from topology.models import AuditEntry, Broker, Role, Topology

pytestmark = pytest.mark.django_db
LEAST = {"viewer": Role.VIEWER, "operator": Role.OPERATOR, "admin": Role.ADMIN}
UNKNOWN_ID = uuid4()


def operations() -> Iterator[tuple[str, str, str, str]]:
    """Method, path below /api/v1/, least role, and where it is needed."""
    for path, methods in make_document()["paths"].items():
        for method, operation in methods.items():
            yield method, path.removeprefix("/api/v1/"), operation["x-role"], operation["x-role-on"]


# What a body needs to be valid; the others have none.
BODIES: dict[str, Any] = {
    "brokers/{broker}/adopt": {"kind": "retry_pair", "name": "gone"},
    "brokers/{broker}/topologies/import": {"definitions": {}},
    "topologies/{topology}/edit": {"values": {}},
    "problems/acknowledge": {"key": "gone"},
    "brokers/{broker}/findings/{key}/mute": {"reason": "known", "until": "2000-01-01"},
    "scheduled/changes": {"kind": "cancel", "messages": [1]},
    "publications": {"broker": "test-broker", "routing_key": "parked"},
    "brokers/{broker}/parkings": {"queue": "parked"},
    "brokers/{broker}/parked-messages/discard": {"group": 10**9},
    "brokers/{broker}/parked-messages/restore": {"group": 10**9},
    "brokers/{broker}/replays": {"group": 10**9},
    "replays/{replay}/start": {"confirm": "nothing"},
    "runs": {"day": "never"},
    "annotations": {"text": "2.4.0", "broker": "test-broker"},
    "webhooks": {"name": "", "url": "", "events": []},
}


@pytest.fixture
def pair() -> Topology:
    return make_pair(make_broker(), delay="15s")


def names_of(pair: Topology) -> dict[str, Any]:
    """A row of each kind of the broker, by the name in a path."""
    broker = pair.broker
    replay = draft(broker)
    message = ParkedMessage.objects.filter(broker=broker).first()
    assert message is not None
    job_id = uuid4()
    job = PublishJob.objects.create(
        id=job_id,
        broker=broker,
        number=1,
        rate=1.0,
        work=work.create("publish", 0, broker=broker, user=None),
    )
    waiting = ScheduledMessage.objects.create(
        broker=broker,
        topology=pair,
        key="m",
        content_id="c",
        attempt=1,
        requested_delay=timedelta(hours=1),
        entered_at=timezone.now(),
        due_at=timezone.now() + timedelta(hours=1),
    )
    change = ScheduledChange.objects.create(
        broker=broker, topology=pair, message=waiting, kind="cancel", key="m", due_at=timezone.now()
    )
    return {
        "waiting": waiting.pk,
        "waiting change": change.pk,
        "broker": broker.slug,
        "key": "f01-gone",
        "topology": pair.slug,
        "group": message.group_id,
        "message": message.pk,
        "parking": Parking.objects.create(broker=broker, queue="parked").pk,
        "change": ParkedChange.objects.create(broker=broker, newest=0, requested=0).pk,
        "replay": replay.pk,
        "publication": Publication.objects.create(broker=broker, size=1).pk,
        "job": job.pk,
        "annotation": Annotation.objects.create(
            at=timezone.now(), text="2.3.1", broker=broker, author="ann"
        ).pk,
        "day": "2026-11-20",
        "log_import": LogImport.objects.create(file_name="a.log").pk,
        "webhook": 10**9,
        "delivery": 10**9,
    }


def call(api: ApiClient, method: str, path: str, names: dict[str, Any]) -> Any:
    body = BODIES.get(path, {}) if method == "post" else None
    if path.startswith("scheduled"):
        names = {"message": names["waiting"], "change": names["waiting change"]}
        body = body and body | {"messages": [names["message"]]}
    address = path.format(**names)
    if method == "delete":
        return api.request("DELETE", address)
    return api.post(address, body) if method == "post" else api.get(address)


def test_each_operation_allows_its_role_on_its_broker_alone(pair: Topology) -> None:
    """Of all operations: no other broker's row is found, and no lower role acts."""
    there = make_broker(name="There")
    know(there)
    names = names_of(pair)
    people: dict[str, ApiClient] = {
        "elsewhere": api_of(make_user("eve", Role.ADMIN, there), Role.ADMIN)
    }
    for name, role in LEAST.items():
        people[name] = api_of(make_user(name, role, pair.broker), role)
        # The owner may more than the token.
        root = User.objects.filter(username="root").first() or make_user("root", Role.ADMIN)
        people[f"limited to {name}"] = api_of(
            root, role, name=f"to {name}", brokers=[pair.broker.pk]
        )
    wrong = []
    for method, path, least, where in operations():
        for who, api in people.items():
            answer = call(api, method, path, names)
            held = LEAST.get(who.removeprefix("limited to "))
            if where == "every broker":
                # Nobody here has a role on all of them.
                is_right = answer.status_code == 403
            elif held is None:
                names_a_row = "{" in path and not path.startswith("reports/")
                is_hidden = answer.status_code == 404 or not names_a_row
                is_right = is_hidden and pair.broker.slug.encode() not in answer.getvalue()
            else:
                is_right = (held >= LEAST[least]) == (answer.status_code != 403)
            if not is_right or answer.status_code == 500:
                wrong.append((method, path, who, answer.status_code, answer.getvalue()))
    assert wrong == []


def test_read_only_refuses_each_change(pair: Topology) -> None:
    names = names_of(pair)
    api = api_of(make_user("ann", Role.ADMIN), Role.ADMIN)
    Broker.objects.update(is_read_only=True)
    # These change no message and no object of the broker, or end what changes some.
    ends = "verify mute unmute pause cancel stop runs adopt lint webhooks send"
    allowed = tuple(ends.split())
    no_change = {"annotations", "annotations/{annotation}/delete", "problems/acknowledge"}
    no_change |= {"log-imports", "log-imports/{log_import}/start"}
    for method, path, *_ in operations():
        if method == "post" and not path.endswith(allowed) and path not in no_change:
            answer = call(api, method, path, names)
            assert (answer.status_code, "read-only" in answer.json()["detail"]) == (403, True), path


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("nothing", 404, "does not exist"),
        ("brokers/none", 404, "does not exist"),
        ("scheduled?from=soon", 422, ""),
        ("scheduled?broker=none", 404, "none"),
        ("brokers/test-broker/route?headers=x", 422, "JSON"),
        ("brokers/test-broker/parked-messages?q=size:x", 422, ""),
        ("reports/never", 422, "is not a date"),
        ("replays?open=perhaps", 422, "not valid"),
    ],
)
def test_an_error_is_a_problem_with_a_sentence(
    pair: Topology, path: str, status: int, sentence: str
) -> None:
    know(pair.broker)
    answer = api_of(make_user("ann", Role.ADMIN), Role.ADMIN).get(path)
    problem = answer.json()
    assert answer["Content-Type"] == "application/problem+json"
    assert (answer.status_code, problem["status"]) == (status, status)
    assert sentence in problem["detail"]
    assert problem["detail"]


def test_other_methods_are_refused() -> None:
    api = api_of(make_user("ann", Role.ADMIN), Role.ADMIN)
    answer = api.request("DELETE", "brokers")
    assert (answer.status_code, answer["Allow"]) == (405, "GET")
    assert answer.json()["detail"] == "Use GET here."


def test_a_body_has_a_limit_and_bodies_of_messages_are_not_stored(
    pair: Topology, settings: Settings
) -> None:
    api = api_of(make_user("ann", Role.ADMIN), Role.ADMIN)
    message = names_of(pair)["message"]
    for path in ("parked-messages", f"parked-messages/{message}"):
        answer = api.get(f"brokers/{pair.broker.slug}/{path}")
        assert (answer.status_code, answer["Cache-Control"]) == (200, "no-store")
        assert "ETag" not in answer
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1024**2
    refused = api.post("runs", {"day": "x" * 1024**2})
    assert (refused.status_code, refused.json()["status"]) == (413, 413)
    assert "larger than 1 MiB" in refused.json()["detail"]


def test_a_dry_run_of_a_discard_only_counts(pair: Topology) -> None:
    api, names = api_of(make_user("ann", Role.OPERATOR), Role.OPERATOR), names_of(pair)
    Broker.objects.update(is_production=True)
    number = ParkedMessage.objects.filter(group=names["group"]).count()
    for requested, body in (
        (number, {"group": names["group"]}),
        (1, {"parked_messages": [names["message"]]}),
        (ParkedMessage.objects.count(), {"query": ""}),
    ):
        answer = api.post(f"brokers/{pair.broker.slug}/parked-messages/discard?dry_run=true", body)
        assert (answer.status_code, answer.json()["requested"]) == (200, requested)
    assert not ParkedMessage.objects.filter(state="discarded").exists()


def test_a_dry_run_of_a_discard_does_not_count_what_no_search_finds_yet(pair: Topology) -> None:
    api = api_of(make_user("ann", Role.OPERATOR), Role.OPERATOR)
    some = (Message("", "parked", Properties(), b"xyzzy %d" % one) for one in range(3))
    rows = parked(pair.broker, *some, queue="parked")
    index._index([max(row.pk for row in rows)])
    path, body = f"brokers/{pair.broker.slug}/parked-messages/discard", {"query": "xyzzy"}
    counted, made = (api.post(f"{path}{dry}", body) for dry in ("?dry_run=true", ""))
    assert (counted.json()["requested"], made.json()["requested"]) == (None, None)
    assert made.status_code == 202


def test_a_log_is_imported_after_a_dry_run(
    pair: Topology, settings: Settings, tmp_path: Path
) -> None:
    settings.EVENT_LOG = tmp_path
    api = api_of(make_user("ann", Role.ADMIN), Role.ADMIN)
    path, slug, log = "log-imports", pair.broker.slug, {"message": "started"}
    begun = api.post(f"{path}?name=a.json&mapping=spring-ecs&broker={slug}&dry_run=true", log)
    assert begun.status_code == 202
    place = begun["Location"].removeprefix("/api/v1/")
    shown = api.get(place).json()
    assert shown == begun.json()
    assert (shown["state"], shown["is_dry_run"], shown["counts"]) == ("waiting", True, {})
    assert api.post(f"{place}/start").status_code == 422
    assert api.post(f"{place}/stop").json()["state"] == "cancelled"
    started = api.post(f"{place}/start")
    assert (started.status_code, started.json()["is_dry_run"]) == (202, False)
    assert [one["id"] for one in api.get(path).json()["items"]] == [shown["id"]]
    for words, status in (
        (f"mapping=none&broker={slug}", 422),
        ("mapping=spring-ecs", 422),
        ("mapping=spring-ecs&broker=none", 404),
    ):
        assert api.post(f"{path}?{words}", log).status_code == status, words
    kept = [row.path for row in LogImport.objects.exclude(path="")]
    assert [str(one) for one in (settings.EVENT_LOG / "_uploads").iterdir()] == kept


def test_an_empty_id_is_of_no_message(pair: Topology) -> None:
    names_of(pair)
    api = api_of(make_user("ann", Role.VIEWER), Role.VIEWER)
    for one, number in (("m", 1), ("", 0), (" ", 0), ("x", 0)):
        assert len(api.get("scheduled/changes", {"id": one}).json()["items"]) == number
        lines = b"".join(api.get("scheduled/export", {"id": one}).streaming_content).splitlines()
        assert len(lines) == number


def test_a_body_is_read_strictly(pair: Topology) -> None:
    api = api_of(make_user("ann", Role.ADMIN), Role.ADMIN)
    for body in ({"kind": "cancel", "messages": ["1"]}, {"kind": "cancel", "messages": [True]}):
        answer = api.post("scheduled/changes", body)
        assert answer.status_code == 422
        assert "body.messages.0" in answer.json()["errors"]
    assert "body.more" in api.post("runs", {"day": "x", "more": 1}).json()["errors"]
    broken = api._client.post("/api/v1/runs", "{", content_type="application/json")
    assert (broken.status_code, broken.json()["detail"]) == (400, "The body is not JSON.")


def test_a_change_with_a_key_is_made_once(pair: Topology) -> None:
    api = api_of(make_user("ann", Role.ADMIN), Role.ADMIN)
    first, second = (api.post("runs", {"day": "2026-11-20"}, key="one") for _ in range(2))
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert first["Location"] == second["Location"]
    assert "Idempotent-Replayed" not in first
    assert second["Idempotent-Replayed"] == "true"
    assert AuditEntry.objects.filter(action="nightly run requested").count() == 1
    assert api.post("runs", {"day": "2026-11-21"}, key="one").status_code == 422
    # The key of another token is another key.
    other = api_of(make_user("eve", Role.ADMIN), Role.ADMIN)
    assert "Idempotent-Replayed" not in other.post("runs", {"day": "2026-11-20"}, key="one")


def test_a_refusal_is_not_kept_and_an_unknown_outcome_is(pair: Topology) -> None:
    api = api_of(make_user("ann", Role.ADMIN), Role.ADMIN)
    assert api.post("runs", {"day": "never"}, key="one").status_code == 422
    assert not ApiAnswer.objects.exists()
    assert api.post("runs", {"day": "2026-11-20"}, key="one").status_code == 202
    ApiAnswer.objects.update(status=None)
    answer = api.post("runs", {"day": "2026-11-20"}, key="one")
    assert answer.status_code == 409
    assert "has no answer yet" in answer.json()["detail"]
    assert api.post("runs", {"day": "never"}, key="x" * 256).status_code == 400


def test_pages_follow_each_other(pair: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayboard.api.views.replays.PAGE", 1)
    made = [draft(pair.broker).pk for _ in range(3)]
    api = api_of(make_user("ann", Role.VIEWER), Role.VIEWER)
    found: list[int] = []
    after: str | None = ""
    while after is not None:
        page = api.get("replays", {"after": after}).json()
        found += [one["replay"] for one in page["items"]]
        after = page["next"]
    assert found == made[::-1]


def test_production_needs_the_name_of_the_broker(pair: Topology) -> None:
    batch = draft(pair.broker)
    Broker.objects.update(is_production=True)
    api = api_of(make_user("ann", Role.OPERATOR), Role.OPERATOR)
    answer = api.post(f"replays/{batch.pk}/start", {"despite_verdict": True})
    assert answer.status_code == 409
    assert "production broker" in answer.json()["detail"]
    confirmed = {"despite_verdict": True, "confirm": pair.broker.name}
    assert api.post(f"replays/{batch.pk}/start", confirmed).status_code == 202
    assert ReplayBatch.objects.get().started_by == User.objects.get()


def test_another_person_approves_a_replay_and_no_other_token_of_the_first(pair: Topology) -> None:
    batch = draft(pair.broker)
    Broker.objects.update(needs_approval=True)
    ann, address = make_user("ann", Role.OPERATOR), f"replays/{batch.pk}/start"
    body = {"despite_verdict": True, "stages": "50% 1m", "reason": "fixed in 4.2"}
    asked = api_of(ann, Role.OPERATOR).post(address, body).json()
    assert (asked["state"], asked["approval_requested_by"]) == ("draft", "ann")
    again = api_of(ann, Role.OPERATOR, name="another").post(address, body)
    assert (again.status_code, "Another operator" in again.json()["detail"]) == (409, True)
    bob = api_of(make_user("bob", Role.OPERATOR), Role.OPERATOR)
    blind = bob.post(address, body)
    assert (blind.status_code, "Look at it again" in blind.json()["detail"]) == (409, True)
    started = bob.post(address, body | {"approves": asked["approval_request"]}).json()
    assert started["state"] in ("waiting", "running")
    batch.refresh_from_db()
    assert (batch.stages, batch.reason) == ([[50.0, 60, 0]], "fixed in 4.2")


def test_the_same_document_is_not_sent_again(pair: Topology) -> None:
    api = api_of(make_user("ann", Role.OPERATOR), Role.OPERATOR)
    batch = draft(pair.broker)
    for path in (f"replays/{batch.pk}", "topologies", "openapi.json"):
        first = api.get(path)
        known = {"If-None-Match": f'"other", {first["ETag"]}'}
        again = api.get(path, headers=known)
        assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    first = api.get("replays")
    ReplayBatch.objects.update(state="cancelled")
    again = api.get("replays", headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again["ETag"] == first["ETag"]) == (200, False)
    # Who may no longer read it does not get to know that it is the same.
    ApiToken.objects.update(revoked_at=timezone.now())
    assert api.get(path, headers=known).status_code == 401


def test_a_dashboard_asks_for_the_problems_of_its_broker(pair: Topology) -> None:
    make_broker(name="There")
    api = api_of(make_user("ann", Role.VIEWER, pair.broker), Role.VIEWER)
    found = api.get("problems").json()["items"]
    assert {one["broker"] for one in found} == {pair.broker.slug, None}
    assert {one["severity"] for one in found} <= {"error", "warning"}
    assert all(one["sentence"] and one["key"] for one in found)
    assert api.get("problems?broker=there").status_code == 404


def test_a_document_is_that_of_the_command(pair: Topology) -> None:
    """Of two commands; the others have the same functions."""
    batch = draft(pair.broker)
    api = api_of(make_user("ann", Role.OPERATOR), Role.OPERATOR)
    dry = api.get(f"replays/{batch.pk}/dry-run").json()
    assert dry == summary.make_dry_run_record(batch)
    assert api.get(f"replays/{batch.pk}").json() == summary.make_outcome_record(batch)
    names_of(pair)
    out = StringIO()
    call_command("scheduled", "--json", stdout=out, stderr=StringIO())
    (message, _) = map(json.loads, out.getvalue().splitlines())
    assert api.get("scheduled").json()["items"] == [message]
    out = StringIO()
    call_command("scheduled", "changes", "--json", stdout=out)
    assert api.get("scheduled/changes").json()["items"] == [json.loads(out.getvalue())]


def test_the_broker_that_does_not_answer_is_a_503(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = api_of(make_user("ann", Role.OPERATOR), Role.OPERATOR)
    answer = api.post(f"topologies/{pair.slug}/apply", key="one")
    assert (answer.status_code, answer["Retry-After"]) == (503, "10")
    assert "is_unknown" not in answer.json()
    assert not ApiAnswer.objects.exists()

    def lose(*_: Any, **__: Any) -> None:
        raise OutcomeUnknown("The connection broke.")

    monkeypatch.setattr("topology.operations.provision.apply", lose)
    for _ in range(2):
        answer = api.post(f"topologies/{pair.slug}/apply", key="two")
    assert (answer.status_code, answer["Idempotent-Replayed"]) == (503, "true")
    assert answer.json()["is_unknown"]


def test_a_change_whose_answer_is_not_stored_is_unknown(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(_: str) -> bytes:
        raise OperationalError("The connection is closed.") from OSError()

    monkeypatch.setattr(door, "seal_secret", break_off)
    api = api_of(make_user("ann", Role.ADMIN), Role.ADMIN)
    answer = api.post("runs", {"day": "2026-11-20"}, key="one")
    assert (answer.status_code, answer.json()["is_unknown"]) == (503, True)
    assert AuditEntry.objects.filter(action="nightly run requested").exists()


def test_a_failure_is_in_the_log_and_not_in_the_answer(
    pair: Topology, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("delayboard.api.views.brokers._show", fail)
    api = api_of(make_user("ann", Role.VIEWER), Role.VIEWER)
    answer = api.get(f"brokers/{pair.broker.slug}")
    assert (answer.status_code, "is_unknown" in answer.json()) == (500, False)
    assert "secret" not in answer.content.decode()
    assert "a secret" in caplog.text


def test_what_serves_no_request_of_the_api_loads_nothing_of_it() -> None:
    code = (
        "import django, sys; django.setup(); from django.core.checks import run_checks; "
        "run_checks(); import delayboard.urls, delayboard.worker.supervise; "
        "print([name for name in ('ninja', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
