"""Spark as this machine starts it: without a library that no job uses, and with its classes in an
archive, which the JVM maps into memory in place of loading them one by one.

Both lie in a folder of the Python environment that is named after the JVM and the jars.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyspark

INSTALLED = Path(pyspark.__file__).resolve().parent
# Spark's machine learning: each session would load its classes, which takes a second.
UNUSED = "spark-mllib_*.jar"
NAME = "spark-"
ARCHIVE = "classes.jsa"


def find() -> Path | None:
    """The folder for SPARK_HOME, made if it is missing; None where SPARK_HOME is set already or
    the Python environment cannot be written.
    """
    if "SPARK_HOME" in os.environ:
        return None
    home = Path(sys.prefix).resolve() / f"{NAME}{_fingerprint()}"
    if not home.exists():
        aside = home.with_name(f".{home.name}.{uuid4().hex}")
        try:
            _link(aside)
            aside.rename(home)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
    return home if home.exists() else None


def archive_options(home: Path, *, is_written: bool) -> tuple[str, Path | None]:
    """The JVM's options to map the archive; where none is there and it is to be written, to write
    one when it ends, and the path for `keep`.
    """
    options, archive = "-Xlog:cds*=off:stderr", home / ARCHIVE
    if archive.exists():
        return f'{options} "-XX:SharedArchiveFile={archive}"', None
    if not is_written:
        return options, None
    written = home / f"{ARCHIVE}.{os.getpid()}"
    return f'{options} "-XX:ArchiveClassesAtExit={written}"', written


def keep(written: Path) -> None:
    """Put a whole archive in its place, durably: a JVM crashes on a part of one.

    Others are deleted, of earlier JVMs and jars, and what killed runs left.
    """
    home = written.parent
    with suppress(OSError):
        with written.open("rb") as file:
            os.fsync(file.fileno())
        written.rename(home / ARCHIVE)
        for other in home.parent.glob(f"{NAME}*/{ARCHIVE}*"):
            if other != home / ARCHIVE:
                other.unlink()


def _fingerprint() -> str:
    """Of the JVM and the jars, which an archive is made of."""
    folder = os.environ.get("JAVA_HOME")
    java = f"{folder}/bin/java" if folder else shutil.which("java") or ""
    files = [Path(java).resolve(), *sorted((INSTALLED / "jars").glob("*.jar"))]
    known = [(str(file), file.stat().st_mtime_ns) for file in files if file.exists()]
    return hashlib.sha256(repr(known).encode()).hexdigest()[:12]


def _link(home: Path) -> None:
    """Make a folder that has all of INSTALLED but the jars that are UNUSED."""
    jars = INSTALLED / "jars"
    (home / jars.name).mkdir(parents=True)
    for path in INSTALLED.iterdir():
        if path != jars:
            (home / path.name).symlink_to(path)
    for jar in jars.iterdir():
        if not jar.match(UNUSED):
            (home / jars.name / jar.name).symlink_to(jar)
