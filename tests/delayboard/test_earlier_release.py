"""The database of each earlier release becomes that of this version, with what was in it.

A file of tests/releases is the SQLite database of a release, made by it, with a row of each kind
that a migration has changed since. It stays.
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.processes import ROOT
from topology.patterns.table import PATTERNS

RELEASES = sorted((ROOT / "tests" / "releases").glob("*.sqlite3.gz"))
COUNTS = {
    "topology_broker": 1,
    "topology_topology": 1,
    "topology_work": 1,
    "analytics_scheduledmessage": 1,
    "analytics_logposition": 1,
    "analytics_run": 1,
    "delayboard_parkedmessage": 2,
    "delayboard_backgroundtask": 1,
}


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name.partition(".sqlite3")[0])
def test_the_database_of_an_earlier_release_is_migrated_with_its_rows(
    release: Path, tmp_path: Path
) -> None:
    database = tmp_path / "delayboard.sqlite3"
    database.write_bytes(gzip.decompress(release.read_bytes()))
    with closing(sqlite3.connect(database)) as rows:
        # As before its pattern had this parameter.
        rows.execute("UPDATE topology_topology SET params = json_remove(params, '$.queue_type')")
        rows.commit()
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "migrate", "--verbosity=0"],
        env={**kept, "DELAYBOARD_VAR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with closing(sqlite3.connect(database)) as rows:
        found = {
            table: rows.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in COUNTS
        }
        assert found == COUNTS
        addresses = "SELECT amqp_addresses, management_urls FROM topology_broker"
        assert rows.execute(addresses).fetchall() == [("127.0.0.1:5672", "http://127.0.0.1:15672")]
        # Stored parameters are compared as they are.
        for kind, params in rows.execute("SELECT kind, params FROM topology_topology"):
            pattern, stored = PATTERNS[kind], json.loads(params)
            assert pattern.store(pattern.parse(stored)) == stored
        # What an earlier worker still writes during an upgrade needs no new column.
        rows.execute("INSERT INTO analytics_logposition (path, bytes_read) VALUES ('x', 1)")
        assert rows.execute("SELECT log FROM analytics_logposition").fetchall() == [("",), ("",)]
        assert rows.execute("PRAGMA foreign_key_check").fetchall() == []
