"""The log of a run: one line of JSON for each record, and the same scalars for TensorBoard if it is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError
from ..output_files import write_text


class Log:
    """Records by step. A resumed run deletes the records after its starting step, and writes them again."""

    def __init__(self, folder: Path, step: int, tensorboard: bool | None = None) -> None:
        self.path = folder / "log.jsonl"
        if self.path.exists():
            write_text(self.path, "".join(f"{json.dumps(r)}\n" for r in read(self.path) if r["step"] <= step))
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (open as long as the run)
        self._board = _board(folder / "tensorboard", step, tensorboard)

    def write(self, step: int, scalars: Mapping[str, float], **more: Any) -> None:
        """Write a record; `more` goes to the file only."""
        self._file.write(json.dumps({"step": step, **more, **scalars}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in scalars.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a log; an incomplete last line is ignored."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def _board(folder: Path, step: int, wanted: bool | None) -> Any:
    if wanted is False:
        return None
    if importlib.util.find_spec("tensorboard") is None:
        if wanted:
            raise MissingExtraError(
                "configs.train.tensorboard=True, but TensorBoard is not installed: pip install 'grace-dl[train]'. (The same scalars "
                "are in log.jsonl.)"
            )
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)  # type: ignore[no-untyped-call]
