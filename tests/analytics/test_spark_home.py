"""Spark's folder for local mode, and the archive of classes in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from analytics.jobs import spark_home


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment that no job has used."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def test_all_of_spark_is_there_but_machine_learning(environment: Path) -> None:
    home = spark_home.find()
    assert home is not None
    jars = {path.name for path in (spark_home.INSTALLED / "jars").iterdir()}
    (missing,) = jars - {path.name for path in (home / "jars").iterdir()}
    assert missing.startswith("spark-mllib_")
    others = {path.name for path in home.iterdir()} - {"jars"}
    assert others == {path.name for path in spark_home.INSTALLED.iterdir()} - {"jars"}
    assert spark_home.find() == home
    assert list(environment.iterdir()) == [home]


def test_another_jvm_has_another_folder(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = spark_home.find()
    java = environment / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(environment / "jdk"))
    other = spark_home.find()
    assert other not in {home, None}
    os.utime(java, (1, 1))
    assert spark_home.find() not in {home, other, None}


def test_a_spark_home_that_is_set_is_used_as_it_is(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home.find() is None
    assert list(environment.iterdir()) == []


def test_an_environment_that_cannot_be_written_has_none(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(environment / "file" / "below"))
    (environment / "file").touch()
    assert spark_home.find() is None


def test_one_whole_archive_is_kept(environment: Path) -> None:
    home, old = spark_home.find(), environment / "spark-of-another-jvm"
    assert home is not None
    old.mkdir()
    (old / spark_home.ARCHIVE).write_text("old")
    (home / f"{spark_home.ARCHIVE}.1").write_text("of a killed run")
    options, written = spark_home.archive_options(home, is_written=True)
    assert written is not None
    assert f"ArchiveClassesAtExit={written}" in options
    written.write_text("whole")
    spark_home.keep(written)
    assert [path.read_text() for path in environment.glob("*/classes*")] == ["whole"]
    options, again = spark_home.archive_options(home, is_written=True)
    assert again is None
    assert f"SharedArchiveFile={home / spark_home.ARCHIVE}" in options
    spark_home.keep(written)
    assert (home / spark_home.ARCHIVE).read_text() == "whole"


def test_a_job_that_writes_no_archive_needs_none(environment: Path) -> None:
    home = spark_home.find()
    assert home is not None
    options, written = spark_home.archive_options(home, is_written=False)
    assert written is None
    assert "classes" not in options
