"""Topologies planned from exported definitions, and printed for other tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import make_broker, make_pair
from tests.commands import run
from tests.topology.builders import a_queue
from topology.broker.management.definitions_file import NotDefinitions
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.exports.resources import raw_definitions
from topology.models import AuditEntry, State, Topology
from topology.operations.definitions_files import export_topology, import_definitions
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.chain.params import claim
from topology.patterns.delayed_exchange.pattern import delayed_exchange
from topology.patterns.pattern import Pattern
from topology.patterns.table import list_created
from topology.structure.find_chains import find_chains

pytestmark = pytest.mark.django_db


# The queues of others come with use, so that nothing of them is exported.
LASTING = [one for one in list_created().values() if len(one.definitions(one.EXAMPLE))]


@pytest.mark.parametrize("pattern", LASTING, ids=lambda pattern: pattern.KIND)
def test_what_is_exported_is_planned_with_the_same_objects(pattern: Pattern) -> None:
    made = create_topology(None, make_broker(), pattern.KIND, pattern.EXAMPLE)
    document = json.loads(export_topology(made, "definitions", Definitions()))
    (planned,) = import_definitions(None, make_broker(name="Other"), document).planned
    assert (planned.kind, planned.state) == (made.kind, State.PLANNED)
    own = pattern.definitions(made.parsed)
    assert planned.pattern.definitions(planned.parsed) == own


def test_what_exists_is_skipped_and_what_belongs_to_nothing_is_counted() -> None:
    broker = make_broker()
    pair = make_pair(broker)
    objects = [*pair.pattern.definitions(pair.parsed), Queue("of-nobody")]
    imported = import_definitions(None, broker, raw_definitions(objects))
    assert imported.planned == ()
    assert "already exists" in imported.skipped[0]
    assert imported.sentence == (
        "0 topologies planned, 1 skipped. The broker is not changed. 1 objects of the file belong "
        "to no pattern."
    )
    assert AuditEntry.objects.filter(action="definitions imported").exists()


def test_an_exchange_of_the_archived_plugin_is_skipped() -> None:
    later = delayed_exchange.definitions(delayed_exchange.EXAMPLE)
    document = raw_definitions([*later, Queue("orders")])
    imported = import_definitions(None, make_broker(), document)
    assert imported.planned == ()
    assert imported.skipped == (
        "Delayboard creates no topology of the pattern Delayed exchange: “reminders”.",
    )


def test_one_of_several_virtual_hosts_has_to_be_named() -> None:
    document = {"vhosts": [{"name": "/"}, {"name": "shop"}], "queues": []}
    with pytest.raises(Refusal, match="Choose one of the virtual hosts in the file: “/”, “shop”"):
        import_definitions(None, make_broker(), document)
    assert import_definitions(None, make_broker(name="b"), document, "shop").planned == ()
    with pytest.raises(NotDefinitions):
        import_definitions(None, make_broker(name="c"), [])


def test_the_commands_print_and_plan(tmp_path: Path) -> None:
    pair = make_pair(make_broker())
    other = make_broker(name="Other")
    code, text, _ = run("export_topology", pair.slug)
    assert code == 0
    file = tmp_path / "definitions.json"
    file.write_text(text)
    code, text, _ = run("import_topologies", other.slug, str(file))
    assert code == 0
    planned = Topology.objects.get(broker=other)
    assert text.startswith(f"Planned: {planned.slug} (retry_pair)\n1 topology planned")
    assert run("import_topologies", other.slug, str(file))[0] == 1
    assert run("export_topology", pair.slug, "--format", "terraform")[1].startswith("terraform {")
    code, text, _ = run("export_topology", pair.slug, "--format", "permissions")
    assert "\nVHOST=nowhere\nrabbitmqctl set_permissions" in text
    assert "publisher '^$' '^(orders|orders-retry)$' '^$'\n" in text
    _, declaring, _ = run("export_topology", pair.slug, "--format", "permissions-declaring")
    assert "publisher '^(orders|orders-retry)$' '^(orders|orders-retry)$' '^(orders|" in declaring


def test_the_permissions_of_delayboard_are_for_all_topologies_of_the_virtual_host() -> None:
    pair = make_pair(make_broker())
    make_pair(pair.broker, name="bills")
    make_pair(make_broker(name="Other"), name="others")
    text = export_topology(pair, "permissions", Definitions())
    (line,) = [one for one in text.splitlines() if " delayboard '" in one]
    assert "bills-retry" in line
    assert "others" not in line


@pytest.mark.parametrize("raw", [b"", b"[1", b"\xff", b"[]", b"[" * 100_000])
def test_what_cannot_be_read_is_bad_input(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "definitions.json"
    file.write_bytes(raw)
    code, _, errors = run("import_topologies", make_broker().slug, str(file))
    assert (code, errors.count("\n")) == (2, 1)


def test_unknown_names_are_bad_input(tmp_path: Path) -> None:
    assert run("export_topology", "nobody")[0] == 2
    assert run("import_topologies", "nobody", "x.json")[0] == 2
    code, _, errors = run("import_topologies", make_broker().slug, str(tmp_path / "none.json"))
    assert (code, errors.count("\n")) == (2, 1)


@pytest.mark.parametrize("form", ["definitions", "terraform", "kubernetes"])
def test_an_exchange_that_every_vhost_has_is_bound_and_not_declared(form: str) -> None:
    """RabbitMQ's trace exchange is internal too, which two of the tools refuse."""
    objects = Definitions.of(
        [
            Exchange("amq.direct"),
            a_queue("later", ttl=5000, dlx="amq.direct", key="mail"),
            Binding("amq.direct", "mail", "mail"),
            a_queue("mail"),
        ]
    )
    (chain,) = find_chains(objects)
    row = create_topology(None, make_broker(), "delay_chain", claim(chain, objects))
    written = export_topology(row, form, Definitions())
    declared = {
        "definitions": '"exchanges": []',
        "terraform": 'source = "amq.direct"',
        "kubernetes": 'source: "amq.direct"',
    }
    assert declared[form] in written
    assert 'rabbitmq_exchange"' not in written
    assert 'kind: "Exchange"' not in written
