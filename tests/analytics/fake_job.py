"""A program in the place of the Spark jobs: behaves as the environment says."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from analytics.launch import EXCLUDED, TABLES


def main() -> int:
    behaviour = os.environ.get("FAKE_JOB", "finish")
    print("noise that is no progress")
    print(json.dumps({"done": 1, "total": 2, "step": "pretending"}), flush=True)
    if behaviour == "fail":
        print("first complaint", file=sys.stderr)
        print("the disk is on fire", file=sys.stderr)
        return 1
    if behaviour == "no data":
        print(json.dumps({"no_data": "Nothing was there."}))
        return 4
    if behaviour.startswith("hang"):
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(behaviour.partition(" ")[2]).write_text(f"{os.getpid()} {grandchild.pid}")
        time.sleep(600)
    parser = argparse.ArgumentParser()
    for name in ("--log", "--day", "--results", "--out", "--compact", "--parking"):
        parser.add_argument(name)
    print(json.dumps({"spark_version": "9.9", "peak_memory_bytes": 5000}), flush=True)
    out = Path(parser.parse_args().out)
    result = json.loads(os.environ.get("FAKE_RESULT", "{}"))
    summary = {"lines": 7, "malformed": 1, "excluded": {"malformed": 0, "torn": 1}}
    (out / "summary.json").write_text(json.dumps(summary))
    for table in (*TABLES, EXCLUDED):
        rows = "".join(json.dumps(row) + "\n" for row in result.get(table, []))
        (out / f"{table}.jsonl").write_text(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
