"""The examples of docs/api.md, run by a shell against the served site and a real broker."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx2
import pytest
from django.db import connection
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from pytest_django import Settings

from delayboard.management import run_in_process
from delayboard.models import BatchState, ReplayBatch
from tests.brokers import Vhost
from tests.builders import make_broker, make_pair, make_user, running
from tests.real_broker import replaying
from tests.site.api_client import api_of
from tests.site.test_api import names_of
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db(transaction=True)
DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
AT_WORK = (BatchState.WAITING, BatchState.RUNNING, BatchState.WATCHING)


def work(stop: Event) -> None:
    """Carries out what is started."""
    while not stop.wait(0.1):
        batch = ReplayBatch.objects.filter(state__in=AT_WORK).first()
        if batch is not None:
            run_in_process.carry_out(batch, stop, lambda _: None)
    connection.close()


def test_a_group_is_replayed_by_curl_as_the_document_says(
    vhost: Vhost, site_url: str, settings: Settings, tmp_path: Path
) -> None:
    settings.EVENT_LOG = tmp_path / "log"
    broker = make_broker(vhost)
    ann = make_user("ann", Role.OPERATOR)
    replaying.shop(vhost)
    replaying.rejected(vhost, "a", "b", "c")
    parked = replaying.park(ann, broker, 3)
    examples = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(examples) == 4
    token = api_of(ann, Role.OPERATOR).secret
    variables = {"BOARD": site_url, "TOKEN": token, "BROKER": broker.slug}
    with running(work):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(examples)],
            env={"PATH": "/usr/bin:/bin", "GROUP": str(parked[0].group_id), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    batch = ReplayBatch.objects.get()
    assert (batch.state, batch.done, batch.canary) == (BatchState.DONE, 3, 1)
    assert '"kind": "dry-run"' in done.stdout
    assert {one.message_id for one in parked} == {
        message.properties.message_id for message in replaying.arrived(vhost, number=3)
    }
    started = AuditEntry.objects.get(action="replay started")
    assert (started.username, started.details["token"]) == ("ann", "test")


def test_a_body_of_unknown_length_is_refused(site_url: str) -> None:
    secret = api_of(make_user("ann", Role.ADMIN), Role.ADMIN).secret
    headers = {"Authorization": f"Bearer {secret}"}
    chunks = Request(f"{site_url}/api/v1/log-imports", iter([b"{}"]), headers)
    with pytest.raises(HTTPError) as refused, urlopen(chunks):
        pass
    with refused.value as answer:
        assert (answer.code, "Content-Length" in json.load(answer)["detail"]) == (411, True)


def test_an_agent_reads_by_tools_and_changes_nothing(site_url: str, tmp_path: Path) -> None:
    broker = make_broker(name="Orders")
    file = tmp_path / "token"
    file.write_text(api_of(make_user("ann", Role.OPERATOR), Role.OPERATOR).secret)
    arguments = ["-m", "delayboard", "mcp", "--server", site_url, "--token-file", str(file)]
    variables = {"DELAYBOARD_VAR": str(tmp_path / "var"), "PATH": "/usr/bin:/bin"}
    server = StdioServerParameters(command=sys.executable, args=arguments, env=variables)

    async def talk() -> None:
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            names = {one.name for one in (await session.list_tools()).tools}
            assert {"list_brokers", "get_parked", "verify_topology"} <= names
            assert names.isdisjoint({"apply_topology", "start_replay", "publish"})
            found: Any = await session.call_tool("get_broker", {"broker": broker.slug})
            assert json.loads(found.content[0].text)["name"] == "Orders"
            refused: Any = await session.call_tool("get_broker", {"broker": "../runs"})
            assert refused.is_error
            assert "must not have a “/”" in refused.content[0].text
            changed = await session.call_tool("start_replay", {"replay": 1})
            assert changed.is_error
            prompts: Any = await session.get_prompt("check_broker", {"broker": broker.slug})
            assert broker.slug in prompts.messages[0].content.text

    asyncio.run(asyncio.wait_for(talk(), 60))


def test_an_agent_reads_by_http_and_changes_what_its_token_may(site_url: str) -> None:
    broker = make_broker(name="Orders")
    names_of(make_pair(broker))
    tokens = [
        api_of(make_user(role.name, role, broker), role).secret
        for role in (Role.VIEWER, Role.OPERATOR)
    ]

    async def talk(token: str, *, may_change: bool) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            streamable_http_client(f"{site_url}/mcp", http_client=http) as streams,
            ClientSession(*streams) as session,
        ):
            await session.initialize()
            names = {one.name for one in (await session.list_tools()).tools}
            assert {"list_brokers", "list_groups"} <= names
            assert ({"apply_topology", "start_replay", "publish"} <= names) == may_change
            assert names.isdisjoint({"create_webhook"})
            found: Any = await session.call_tool("get_broker", {"broker": broker.slug})
            assert json.loads(found.content[0].text)["name"] == "Orders"
            refused: Any = await session.call_tool("get_broker", {"broker": "../runs"})
            assert "must not have a “/”" in refused.content[0].text
            changed: Any = await session.call_tool("cancel_replay", {"replay": 10**6})
            assert changed.is_error
            sentence = "does not exist" if may_change else "There is no tool"
            assert sentence in changed.content[0].text
            listed: Any = await session.call_tool("list_changes", {"id": ["m"]})
            assert len(json.loads(listed.content[0].text)["items"]) == 1
            assert len((await session.list_prompts()).prompts) == 3
            prompt: Any = await session.get_prompt("plan_replay", {"broker": "b", "group": "7"})
            assert "group 7" in prompt.messages[0].content.text

    for token, may_change in zip(tokens, (False, True), strict=True):
        asyncio.run(asyncio.wait_for(talk(token, may_change=may_change), 60))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Host": "elsewhere.example"}, 400),
        ({"Origin": "https://elsewhere.example"}, 403),
    ],
)
def test_mcp_refuses_without_a_token_and_for_another_site(
    site_url: str, headers: dict[str, str], status: int
) -> None:
    request = Request(f"{site_url}/mcp", b"{}", headers)
    with pytest.raises(HTTPError) as refused:
        urlopen(request)
    with refused.value as answer:
        assert (answer.code, bool(json.load(answer)["detail"])) == (status, True)


def test_mcp_counts_requests_as_the_api(site_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayboard.api.door.REQUESTS_PER_MINUTE", 0)
    token = api_of(make_user("ann", Role.VIEWER), Role.VIEWER).secret
    request = Request(f"{site_url}/mcp", b"{}", {"Authorization": f"Bearer {token}"})
    with pytest.raises(HTTPError) as refused:
        urlopen(request)
    with refused.value as answer:
        assert answer.code == 429
        assert answer.headers["Retry-After"]


@pytest.mark.long
def test_a_generated_client_reads_and_is_refused(
    site_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By openapi-python-client, of the document as the site serves it."""
    broker = make_broker(name="Orders")
    api = api_of(make_user("ann", Role.VIEWER), Role.VIEWER)
    (tmp_path / "openapi.json").write_bytes(api.get("openapi.json").content)
    command = [str(Path(sys.executable).parent / "openapi-python-client"), "generate"]
    command += ["--path", str(tmp_path / "openapi.json"), "--meta", "none"]
    command += ["--output-path", str(tmp_path / "board_client")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # It has no formatter here, and nothing else to say.
    assert {line for line in done.stdout.splitlines() if "WARNING" in line} == set()
    monkeypatch.syspath_prepend(str(tmp_path))
    package = import_module("board_client")
    modules = {
        name: import_module(f"board_client.api.brokers.{name}")
        for name in ("list_brokers", "get_broker", "adopt_topology")
    }
    with package.AuthenticatedClient(base_url=site_url, token=api.secret) as client:
        listed = modules["list_brokers"].sync(client=client)
        one = modules["get_broker"].sync(broker.slug, client=client)
        body = package.models.Adoption(kind="retry_pair", name="x")
        adopt = modules["adopt_topology"].sync_detailed
        refused = adopt(broker.slug, client=client, body=body)
    assert [one.slug for one in listed.items] == [broker.slug]
    assert (one.name, one.version) == ("Orders", None)
    assert refused.status_code == 403
    assert "role operator" in refused.parsed.detail
