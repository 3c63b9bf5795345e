"""Checkpoints of one rank: files are replaced atomically; the newest few and the best stay."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import StateError

FORMAT = 2
_STEP = re.compile(r"step(\d+)\.rank(\d+)\.pt")


class Checkpoints:
    """The checkpoints of one rank; the folder may be shared by all ranks or local to each machine."""

    def __init__(self, folder: Path, rank: int, keep: int) -> None:
        self.folder, self.rank, self.keep = folder, rank, keep
        for torn in folder.glob(f".rank{rank}.*"):
            torn.unlink(missing_ok=True)  # left by a process that was killed while writing

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first."""
        found = (_STEP.fullmatch(path.name) for path in self.folder.glob("step*"))
        return sorted(int(match[1]) for match in found if match and int(match[2]) == self.rank)

    def path(self, step: int) -> Path:
        return self.folder / f"step{step:09d}.rank{self.rank}.pt"

    @property
    def best(self) -> Path:
        return self.folder / f"best.rank{self.rank}.pt"

    def save(self, step: int, state: Mapping[str, Any], best: bool = False) -> None:
        """Write a checkpoint, then delete those that are too old."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with _Atomic(self.path(step), self.rank) as temporary:
            torch.save(dict(state), temporary)
        if best:
            with _Atomic(self.best, self.rank) as temporary:
                _duplicate(self.path(step), temporary)
        for old in self.steps()[: -self.keep]:
            self.path(old).unlink(missing_ok=True)

    def load(self, path: Path) -> dict[str, Any] | None:
        """Load a checkpoint; None, with a warning, if the file cannot be read."""
        try:
            # Tensors, numbers and strings only: loading runs no code from the file.
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            warnings.warn(f"{path} cannot be read and is ignored: {error}", stacklevel=2)
            return None
        if state.get("format") != FORMAT:
            raise StateError(
                f"{path} has format {state.get('format')!r}, this version writes {FORMAT}; use the version that wrote it, or "
                "another --suffix."
            )
        return state


class _Atomic:
    """A temporary file that replaces `target` once its content is on disk."""

    def __init__(self, target: Path, rank: int) -> None:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".rank{rank}.")
        os.close(handle)
        self.target, self.temporary = target, Path(name)

    def __enter__(self) -> Path:
        return self.temporary

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self.temporary.unlink(missing_ok=True)
            return
        with open(self.temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(self.temporary, 0o644)
        os.replace(self.temporary, self.target)
        folder = os.open(self.target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _duplicate(source: Path, target: Path) -> None:
    target.unlink()
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with _Atomic(path, 0) as temporary:
        temporary.write_text(text)
