"""The archive of Spark's classes in local mode."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from analytics.jobs import class_archive


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment that no job has used."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def test_another_jvm_has_another_archive(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = class_archive.find()
    assert archive is not None
    assert archive.parent == environment
    assert class_archive.find() == archive
    java = environment / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(environment / "jdk"))
    other = class_archive.find()
    assert other not in {archive, None}
    os.utime(java, (1, 1))
    assert class_archive.find() not in {archive, other, None}


def test_a_spark_home_that_is_set_is_used_as_it_is(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert class_archive.find() is None


def test_an_environment_that_cannot_be_written_gets_none(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(environment / "nowhere"))
    archive = class_archive.find()
    assert archive is not None
    assert class_archive.options(archive, is_written=True)[1] is None


def test_one_whole_archive_is_kept(environment: Path) -> None:
    archive = class_archive.find()
    assert archive is not None
    (environment / "spark-classes-of-another-jvm.jsa").write_text("old")
    archive.with_name(f"{archive.name}.1").write_text("of a killed run")
    options, written = class_archive.options(archive, is_written=True)
    assert written is not None
    assert f"ArchiveClassesAtExit={written}" in options
    written.write_text("whole")
    class_archive.keep(written)
    assert [path.read_text() for path in environment.iterdir()] == ["whole"]
    options, again = class_archive.options(archive, is_written=True)
    assert again is None
    assert f"SharedArchiveFile={archive}" in options
    class_archive.keep(written)
    assert archive.read_text() == "whole"


def test_a_job_that_writes_no_archive_needs_none(environment: Path) -> None:
    archive = class_archive.find()
    assert archive is not None
    options, written = class_archive.options(archive, is_written=False)
    assert written is None
    assert "classes" not in options
