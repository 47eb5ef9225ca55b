"""Files at a URL: a path that several machines mount, an S3-compatible storage, or HDFS.

Spark cannot do this here: a machine that only records has none, and its connector to S3 is not part
of PySpark. So PyArrow does it (the extra `s3`), and a shared path needs nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from analytics.log import make_folder, sync_folder

MISSING = (
    "PyArrow is not installed, so Delayboard cannot reach {url}. Run “pip install "
    "'delayboard[s3]'”, or set LOG_URL to a path that all machines mount, such as "
    "file:///srv/delayboard."
)


class StorageError(Exception):
    """What lies at the URL cannot be read or written; the message says why in one sentence."""


class Storage(Protocol):
    """Files by names with slashes. All methods raise StorageError."""

    def put(self, source: Path, name: str) -> None:
        """Write the file whole or not at all, in place of one of this name."""

    def get(self, name: str, target: Path) -> None:
        """Write what the file holds into `target`."""

    def delete(self, name: str) -> None:
        """Delete the file, if there is one."""


def open_storage(url: str) -> Storage:
    """Raises StorageError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _Folder(Path(parts.path))
    if not find_spec("pyarrow"):
        raise StorageError(MISSING.format(url=url))
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    with _explained(url):
        try:
            files, path = FileSystem.from_uri(url.replace("s3a://", "s3://", 1))
        except ArrowException as error:
            raise OSError(str(error)) from error
    return _Remote(url, files, path)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error).split("\n")[0]
        raise StorageError(f"Delayboard cannot reach {url}: {why[:500]}.") from error


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, source: Path, name: str) -> None:
        target = self._folder / name
        with _explained(f"file://{target}"):
            make_folder(target.parent)
            aside = target.with_name(f".{target.name}.{os.getpid()}")
            with source.open("rb") as given, aside.open("wb") as file:
                shutil.copyfileobj(given, file)
                file.flush()
                os.fsync(file.fileno())
            aside.rename(target)
            sync_folder(target.parent)

    def get(self, name: str, target: Path) -> None:
        with _explained(f"file://{self._folder / name}"):
            shutil.copyfile(self._folder / name, target)

    def delete(self, name: str) -> None:
        with _explained(f"file://{self._folder / name}"):
            (self._folder / name).unlink(missing_ok=True)


class _Remote:
    def __init__(self, url: str, files: Any, path: str) -> None:
        self._url, self._files, self._path = url, files, path

    def put(self, source: Path, name: str) -> None:
        target = f"{self._path}/{name}"
        with _explained(f"{self._url}/{name}"), source.open("rb") as given:
            if self._files.type_name == "s3":
                # An object is there when it is whole.
                self._write(given, target)
            else:
                self._files.create_dir(target.rpartition("/")[0], recursive=True)
                self._write(given, f"{target}.part")
                self._files.move(f"{target}.part", target)

    def _write(self, given: Any, target: str) -> None:
        with self._files.open_output_stream(target, compression=None) as file:
            shutil.copyfileobj(given, file)

    def get(self, name: str, target: Path) -> None:
        with _explained(f"{self._url}/{name}"), target.open("wb") as file:
            source = f"{self._path}/{name}"
            with self._files.open_input_stream(source, compression=None) as given:
                shutil.copyfileobj(given, file)

    def delete(self, name: str) -> None:
        with _explained(f"{self._url}/{name}"):
            try:
                self._files.delete_file(f"{self._path}/{name}")
            except FileNotFoundError:
                return
