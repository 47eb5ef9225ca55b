"""Spark's classes in an archive, which the JVM maps into memory in place of loading each.

A cold run of a small day took 11.5 to 14.4 s with it and 13.9 to 18.5 without (four pairs beside
other work): 15 % of the seconds, 17 % of the processor time. It leaves room below the 10 s of a
cold run (tests/bench/nightly.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pyspark

JARS = Path(pyspark.__file__).resolve().parent / "jars"
NAME = "spark-classes-"


def find() -> Path | None:
    """The file in the Python environment, named after the JVM and the jars that it is made of;
    None where SPARK_HOME names another Spark.
    """
    if "SPARK_HOME" in os.environ:
        return None
    folder = os.environ.get("JAVA_HOME")
    java = f"{folder}/bin/java" if folder else shutil.which("java") or ""
    files = [Path(java).resolve(), *sorted(JARS.glob("*.jar"))]
    known = [(str(file), file.stat().st_mtime_ns) for file in files if file.exists()]
    fingerprint = hashlib.sha256(repr(known).encode()).hexdigest()[:12]
    return Path(sys.prefix).resolve() / f"{NAME}{fingerprint}.jsa"


def options(archive: Path, *, is_written: bool) -> tuple[str, Path | None]:
    """The JVM's options to map the archive; where none is there and it is to be and can be written,
    to write one when it ends, and the path for `keep`.
    """
    quiet = "-Xlog:cds*=off:stderr"
    if archive.exists():
        return f'{quiet} "-XX:SharedArchiveFile={archive}"', None
    if not is_written or not os.access(archive.parent, os.W_OK):
        return quiet, None
    written = archive.with_name(f"{archive.name}.{os.getpid()}")
    return f'{quiet} "-XX:ArchiveClassesAtExit={written}"', written


def keep(written: Path) -> None:
    """Put a whole archive in its place, durably: a JVM crashes on a part of one.

    Others are deleted, of earlier JVMs and jars, and what killed runs left.
    """
    archive = written.with_suffix("")
    with suppress(OSError):
        with written.open("rb") as file:
            os.fsync(file.fileno())
        written.rename(archive)
        for other in archive.parent.glob(f"{NAME}*"):
            if other != archive:
                other.unlink()
