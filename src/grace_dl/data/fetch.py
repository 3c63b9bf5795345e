"""Fetch a data set: try its sources in order, verify checksums, move files into the cache atomically."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import GraceError
from ..output_files import replacing

Files = dict[str, bytes]
"""The canonical files of a data set: the same bytes, whichever source they came from."""

Report = Callable[[str], None]
"""Called with a line of text about the progress."""


class DataError(GraceError, RuntimeError):
    """A data set could not be fetched; the message lists what was tried."""


@dataclass(frozen=True)
class Source:
    """One way to get a data set: `get(folder, report)` works in a scratch folder and returns the canonical files."""

    label: str
    get: Callable[[Path, Report], Files]


@dataclass(frozen=True)
class Dataset:
    """A data set: its canonical files with their SHA-256, and where they may come from."""

    name: str
    title: str
    digests: Mapping[str, str]
    sources: tuple[Source, ...]


def cache_folder() -> Path:
    """Where data sets are cached: `GRACE_DATA`, or `grace_dl/data` in the user's cache folder."""
    given = os.environ.get("GRACE_DATA")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grace_dl" / "data"


def fetch(dataset: Dataset, report: Report = lambda line: None) -> Path:
    """The folder with the data set's files, fetched and checked if it is not cached yet."""
    folder = cache_folder() / dataset.name
    if is_complete(folder, dataset.digests):
        return folder
    failures = []
    for source in dataset.sources:
        report(f"{dataset.title}: fetching from {source.label}")
        try:
            with scratch(folder.parent) as work:
                files = source.get(work, report)
                verify(files, dataset.digests)
                return publish(files, folder, dataset.digests)
        except Exception as error:
            # Any failure of one source (no network, no client, another layout) means: try the next.
            failures.append(f"  {source.label}: {type(error).__name__}: {error}")
    raise DataError(
        f"{dataset.title} could not be fetched from any of its sources:\n" + "\n".join(failures) + "\n"
        f"Check the network, or put the files {', '.join(dataset.digests)} into {folder} by hand."
    )


def is_complete(folder: Path, digests: Mapping[str, str]) -> bool:
    """Whether a folder holds every file of a data set, with correct checksums."""
    return all(
        (folder / name).is_file() and sha256((folder / name).read_bytes()) == digest
        for name, digest in digests.items()
    )


def verify(files: Files, digests: Mapping[str, str]) -> None:
    """Raise unless the files are exactly the expected ones."""
    for name, digest in digests.items():
        if name not in files:
            raise DataError(f"{name} is missing")
        found = sha256(files[name])
        if found != digest:
            raise DataError(
                f"{name} has SHA-256 {found}, expected {digest}; it is damaged or another version"
            )


def publish(files: Files, folder: Path, digests: Mapping[str, str]) -> Path:
    """Move verified files into the cache atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in digests:
        with replacing(folder / name) as temporary:
            temporary.write_bytes(files[name])
    return folder


def sha256(data: bytes) -> str:
    """SHA-256 as hexadecimal text."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A temporary folder."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=".fetch-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
