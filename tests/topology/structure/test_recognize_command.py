from __future__ import annotations

import json
from pathlib import Path

from delayboard import run_command
from tests.commands import run
from tests.topology.builders import PAIR, a_queue, a_snapshot
from topology.definitions import Binding, Definitions, Exchange
from topology.exports.resources import raw_definitions
from topology.provisioning.recognition import describe_chains

FOUND = Definitions.of(
    [
        Exchange("delay"),
        a_queue("mail.5s", ttl=5000, dlx="", key="mail"),
        a_queue("mail"),
        Binding("delay", "mail.5s", "mail"),
    ]
)


def test_the_chains_of_a_file_are_listed_without_a_database(tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    file.write_text(json.dumps(raw_definitions(FOUND)))
    code, out, err = run("recognize", str(file), "--json")
    assert (code, err) == (0, "")
    (chain,) = json.loads(out)["chains"]
    assert chain["phrase"] == "Messages wait 5s in mail.5s, then arrive in mail."
    assert (chain["schedules"], chain["retries"], chain["adoptable"]) == (True, False, True)
    assert (chain["pattern"], chain["destinations"]) == (None, ["mail"])
    assert chain["observed"] == {"entries": "tap", "exits": "firehose"}
    (entry,) = chain["entries"]
    assert (entry["exchange"], entry["routing_key"]) == ("delay", "mail")
    assert chain["exit"] == [{"queue": "mail.5s", "exchange": "", "routing_key": "mail"}]
    assert run("recognize", str(file))[1].startswith("mail: Messages wait 5s")


def test_a_chain_is_compared_with_the_pattern_that_would_declare_it(tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    file.write_text(json.dumps(raw_definitions(PAIR)))
    phrase = "Failed messages of orders wait 5s in orders-retry, then return."
    out = run("recognize", str(file))[1]
    assert out.startswith(f"orders (retry_pair, as Delayboard declares it): {phrase}")
    odd = a_queue("orders", dlx="orders-retry", type="classic", x_max_length=9)
    file.write_text(
        json.dumps(raw_definitions(PAIR.without([odd.identity]) | Definitions.of([odd])))
    )
    out = run("recognize", str(file))[1]
    assert out.startswith(f"orders (retry_pair, with differences): {phrase}")
    assert "\n  The queue “orders” differs from the pattern.\n" in out
    (chain,) = json.loads(run("recognize", str(file), "--json")[1])["chains"]
    assert chain["differences"] == ["The queue “orders” differs from the pattern."]


def test_what_cannot_be_changed_is_an_obstacle() -> None:
    queues = [a_queue(name, dlx="", key="mail.XQ") for name in ("mail", "mail.DQ")]
    (chain,) = describe_chains(a_snapshot(Definitions.of(queues)))
    assert chain["adoptable"]
    assert "memory, where Delayboard cannot change them" in " ".join(chain["obstacles"])


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    code, _, err = run("recognize", str(tmp_path / "missing.json"))
    assert code == 2
    assert "cannot be read" in err


def test_a_file_needs_no_database() -> None:
    assert not run_command.needs_database(["manage.py", "recognize", "export.json", "--json"])
    assert run_command.needs_database(["manage.py", "recognize", "rabbit"])
