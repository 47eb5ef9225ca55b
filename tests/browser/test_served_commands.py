"""Commands print the same through the API of a served site as they do on its host."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_django import Settings

from tests.brokers import Vhost
from tests.builders import make_broker, make_pair, make_user
from tests.commands import Ended, run
from tests.real_broker import replaying
from tests.site.api_client import api_of
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db(transaction=True)
Run = Callable[..., Ended]
TIME = r"\d\d:\d\d:\d\d"


@pytest.fixture
def broker(vhost: Vhost, settings: Settings, tmp_path: Path) -> Broker:
    settings.EVENT_LOG = tmp_path / "log"
    return make_broker(vhost)


@pytest.fixture
def elsewhere(broker: Broker, site_url: str, tmp_path: Path) -> Run:
    """A command with the token of an administrator."""
    file = tmp_path / "token"
    file.write_text(api_of(make_user("ann", Role.ADMIN), Role.ADMIN).secret + "\n")
    return lambda *words: run(*words, "--server", site_url, "--token-file", str(file))


def test_topologies_routes_and_findings(broker: Broker, elsewhere: Run, tmp_path: Path) -> None:
    pair = make_pair(broker)
    baseline = tmp_path / "baseline.json"
    steps: list[tuple[int, tuple[str, ...]]] = [
        (1, ("plan", pair.slug)),
        (0, ("apply", pair.slug, "--dry-run", "--json")),
        (0, ("apply", pair.slug)),
        (0, ("verify", pair.slug)),
        (0, ("plan", pair.slug, "--json")),
        (0, ("edit", pair.slug, "delay=20s", "--dry-run")),
        (0, ("walk", broker.slug, "", "orders", "--json")),
        (1, ("walk", broker.slug, "", "orders", "--rejecting", "orders")),
        (1, ("walk", broker.slug, "gone", "x")),
        (0, ("export_topology", pair.slug)),
        (0, ("export_topology", pair.slug, "--format", "terraform")),
        (0, ("lint", broker.slug)),
        (1, ("lint", broker.slug, "--fail-on", "style", "--format", "sarif")),
        (0, ("lint", broker.slug, "--write-baseline", str(baseline))),
        (0, ("lint", broker.slug, "--fail-on", "style", "--baseline", str(baseline))),
        (4, ("report", "--date", "2026-01-01")),
        (4, ("report", "--date", "2026-01-01", "--json")),
        (0, ("teardown", pair.slug, "--dry-run")),
    ]
    for code, words in steps:
        there, here = elsewhere(*words), run(*words)
        # The second one creates nothing; times and the log of the site differ.
        if words[0] != "apply" or "--dry-run" in words:
            assert re.sub(TIME, "", there.out) == re.sub(TIME, "", here.out), words
            assert there.code == here.code, words
        assert there.code == code, (words, there)
    entries = AuditEntry.objects.filter(action="topology verified").values_list(
        "username", flat=True
    )
    assert set(entries) == {"ann", "delayboard"}
    made = json.loads(elsewhere("annotate", "shop 2.4.0", "--topology", pair.slug, "--json").out)
    assert (made["author"], made["topology"]) == ("ann", pair.slug)
    assert json.loads(elsewhere("annotate", "--json").out)[-1] == made
    assert elsewhere("annotate", "--delete", str(made["id"]), "--json").code == 0
    definitions = tmp_path / "definitions.json"
    definitions.write_text(run("export_topology", pair.slug).out)
    imported = elsewhere("import_topologies", broker.slug, str(definitions))
    assert imported == run("import_topologies", broker.slug, str(definitions))
    assert elsewhere("teardown", pair.slug).code == 0
    refused = elsewhere("apply", pair.slug)
    assert (refused.code, "is deleted" in refused.err) == (2, True)
    assert run("apply", pair.slug).code == 2
    assert elsewhere("plan", "none").code == 2


def test_parked_messages(broker: Broker, vhost: Vhost, elsewhere: Run, tmp_path: Path) -> None:
    replaying.shop(vhost)
    replaying.rejected(vhost, "a", "b", "c")
    replaying.park(make_user("bob", Role.OPERATOR), broker, 3)
    file = tmp_path / "parked.jsonl"
    for words in (
        ("export_dead_letters", broker.slug),
        ("export_dead_letters", broker.slug, "--format", "csv"),
        ("export_dead_letters", broker.slug, "--q", "queue:none"),
    ):
        assert elsewhere(*words) == run(*words), words
    file.write_text(run("export_dead_letters", broker.slug).out + "{\n")
    there = elsewhere("import_dead_letters", broker.slug, str(file))
    assert there == run("import_dead_letters", broker.slug, str(file))
    assert there.code == 3


def test_a_token_is_not_sent_in_clear(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("dlb_x")
    words = ("plan", "x", "--server", "http://board.example.com", "--token-file", str(file))
    ended = run(*words)
    assert (ended.code, "Use https" in ended.err) == (2, True)
    assert "did not answer" in run(*words, "--insecure").err
    assert "has no token" in run(*words[:-1], "/dev/null", "--insecure").err
