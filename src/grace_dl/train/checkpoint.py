"""Checkpoints of one rank: files are replaced atomically; the newest few and the best stay."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import digest
from ..errors import GraceError, StateError
from ..formatting import size
from ..output_files import replacing

FORMAT = 3
_FILE = re.compile(r"(?:step(\d+)|best)\.rank(\d+)of(\d+)\.pt")


class Saved(NamedTuple):
    """A checkpoint: its step, and the number of ranks that saved it. The best one has no step in its name."""

    step: int | None
    ranks: int

    def name(self, rank: int) -> str:
        """The name of a rank's file."""
        start = "best" if self.step is None else f"step{self.step:09d}"
        return f"{start}.rank{rank}of{self.ranks}.pt"


class Checkpoints:
    """The checkpoints of one rank; the folder may be shared by all ranks or local to each machine.

    A run may continue on a different number of ranks, so the folder may hold files of several numbers of ranks.
    """

    def __init__(self, folder: Path, rank: int, ranks: int, keep: int) -> None:
        self.folder, self.rank, self.ranks, self.keep = folder, rank, ranks, keep
        self._prefix = f".rank{rank}."

    def files(self) -> set[tuple[Saved, int]]:
        """All files in the folder, with the rank that wrote each."""
        matches = (_FILE.fullmatch(path.name) for path in self.folder.glob("*.pt"))
        return {
            (Saved(None if match[1] is None else int(match[1]), int(match[3])), int(match[2]))
            for match in matches
            if match
        }

    def steps(self) -> list[int]:
        """The steps at which this rank has saved, oldest first."""
        mine = (saved for saved, rank in self.files() if (rank, saved.ranks) == (self.rank, self.ranks))
        return sorted(saved.step for saved in mine if saved.step is not None)

    def path(self, step: int | None) -> Path:
        """The file of this rank for a step, or for the best evaluation."""
        return self.folder / Saved(step, self.ranks).name(self.rank)

    def save(self, step: int, state: Mapping[str, Any], best: bool = False) -> None:
        """Write a checkpoint, then delete those that are too old."""
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.path(step)
        try:
            with replacing(target, self._prefix) as temporary:
                torch.save(digest.sealed(state), temporary)
            if best:
                with replacing(self.path(None), self._prefix) as temporary:
                    _duplicate(target, temporary)
        except (OSError, RuntimeError) as error:
            free = size(shutil.disk_usage(self.folder).free)
            raise GraceError(
                f"the checkpoint {target} could not be written ({free} are free there): {error}. Make room; the same command "
                "then resumes from the checkpoint before."
            ) from error
        self._delete_old(best)

    def _delete_old(self, best: bool) -> None:
        """Delete what is older than the newest steps of this rank."""
        kept = self.steps()[-self.keep :]
        oldest = kept[0] if len(kept) == self.keep else 0
        for saved, path in self._mine():
            if best and saved.ranks != self.ranks if saved.step is None else saved.step < oldest:
                path.unlink(missing_ok=True)

    def start_from(self, step: int) -> None:
        """Delete what a run has left that was killed: half-written files, and steps after the one it resumes from.

        Only while no other run uses the folder.
        """
        for torn in self.folder.glob(f"{self._prefix}*"):
            torn.unlink(missing_ok=True)
        for saved, path in self._mine():
            if saved.step is not None and saved.step > step:
                path.unlink(missing_ok=True)

    def _mine(self) -> list[tuple[Saved, Path]]:
        """The files of this rank, and its share of those of ranks that no longer exist."""
        return [
            (saved, self.folder / saved.name(rank))
            for saved, rank in self.files()
            if rank == self.rank or (rank >= self.ranks and rank % self.ranks == self.rank)
        ]

    def load(self, path: Path) -> dict[str, Any] | None:
        """Load a checkpoint; None, with a warning, if the file cannot be read or is damaged."""
        try:
            # Tensors, numbers and strings only: loading runs no code from the file.
            state: Any = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict):
                raise StateError(f"it holds a {type(state).__name__}, not a checkpoint")
            if state.get("format") == FORMAT:
                digest.check(state, "the checkpoint")
        except Exception as error:
            warnings.warn(f"{path} cannot be read and is ignored: {error}", stacklevel=2)
            return None
        if state.get("format") != FORMAT:
            raise StateError(
                f"{path} has format {state.get('format')!r}, this version writes {FORMAT}; use the version that wrote it, or "
                "another --suffix."
            )
        return state


def _duplicate(source: Path, target: Path) -> None:
    target.unlink()
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
