"""Writing files: checked before any work is done, and never left half-written."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ConfigError, GraceError


def check_writable(path: Path, option: str) -> None:
    """Raise an error if a file cannot be created at `path`; leaves nothing behind."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file in it.")
    folder = Path()
    for part in path.absolute().parts:  # below a folder that is missing, the system does not look at the name
        try:
            os.lstat(folder / part)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise ConfigError(
                    f"{option} {part[:40]}… cannot be written: the name is too long; give a shorter one."
                ) from error
    place = path
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if place != path and not place.is_dir():
        raise ConfigError(f"{option} {path} cannot be written: {place} is not a folder; name another place.")
    folder = place if place.is_dir() else place.parent
    try:  # permissions alone do not tell: root may write anywhere, and still not in /proc or on a read-only disk
        handle, name = tempfile.mkstemp(dir=folder, prefix=".new.")
    except OSError as error:
        reason = (
            "no permission for" if error.errno in (errno.EACCES, errno.EPERM) else "no file can be created in"
        )
        raise ConfigError(
            f"{option} {path} cannot be written: {reason} {folder}; name another place."
        ) from error
    os.close(handle)
    os.unlink(name)


def parse_json(text: str) -> Any:
    """The value of a JSON text; raises `ValueError` also for half a surrogate pair, which no file or terminal can hold.

    >>> parse_json('["a"]')
    ['a']
    """
    value = json.loads(text)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start]!r} is half a character") from error
    return value


def write_text(path: Path, text: str) -> None:
    """Write a file and its folders; an earlier file is replaced at once, or kept if writing fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            draft.write_text(text, "utf-8")
    except OSError as error:
        raise GraceError(f"{path} cannot be written: {explain(error)}") from error


@contextmanager
def replacing(target: Path, prefix: str = ".new.") -> Iterator[Path]:
    """A temporary file in the same folder, which replaces `target` once its content is on disk.

    If the block raises, `target` stays as it was; if the process is killed, a file that starts with `prefix` is left.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=prefix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def explain(error: OSError) -> str:
    """The reason of a failed file operation, and what to do."""
    remedies = {
        errno.ENOSPC: "free some space, or write elsewhere",
        errno.EDQUOT: "free some space, or write elsewhere",
        errno.ENOENT: "check the name",
        errno.ENAMETOOLONG: "give a shorter name",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
    }
    place = f" ({error.filename})" if error.filename else ""
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return (
        f"{reason}{place}; {remedies.get(error.errno or 0, 'name another place, or change its permissions')}."
    )
