"""Checkpoints of a handle on all ranks: one file per rank, or one checkpoint through `torch.distributed.checkpoint`.

State differs between ranks, so all ranks take part in saving. A checkpoint can be loaded on a different number of ranks, and into a
handle with another method.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from . import saved_state
from .digest import digest
from .errors import ConfigError, LayoutError, StateError
from .handle import Handle
from .output_files import replacing
from .transport import Transport

_FILES = "grace-rank*.pt"
_KEY = re.compile(r"(?:.*[.-])?rank(\d+)-of-(\d+)(?:\.pt)?")


def save(handle: Handle, folder: str | os.PathLike[str]) -> None:
    """Save the state of this rank in `folder`; all ranks must call it. If one cannot save, all raise an error.

    >>> import tempfile
    >>> import grace_dl as grace
    >>> folder = tempfile.mkdtemp()
    >>> handle = grace.manual(grace.topk(0.01))
    >>> grace.save(handle, folder)
    >>> grace.load(handle, folder)
    """
    transport, top = _handle(handle).session.transport, _folder(folder)
    failure: Exception | None = None
    try:
        top.mkdir(parents=True, exist_ok=True)
        with replacing(_path(top, _key(transport))) as temporary:
            torch.save(handle.state_dict(), temporary)
    except Exception as error:
        failure = error
    try:
        transport.agree(
            "a checkpoint" if failure is None else f"a checkpoint that cannot be written: {failure}"
        )
    except LayoutError as error:
        raise failure or StateError(f"the checkpoint in {folder} is not complete: {error}") from error
    if failure is not None:
        raise failure
    # All ranks have saved: what other numbers of ranks have left is outdated.
    for path in top.glob(_FILES):
        rank, size = _parsed(path.name)
        if size not in (0, transport.size) and rank % transport.size == transport.rank:
            path.unlink(missing_ok=True)


def load(handle: Handle, folder: str | os.PathLike[str]) -> None:
    """Load what `save` has saved; all ranks must call it.

    State of a different number of ranks is converted. The handle keeps its method: residuals of another one are added to the next
    gradient.
    """
    transport, top = _handle(handle).session.transport, _folder(folder)

    def found() -> dict[str, Any]:
        keys = _wanted((path.stem for path in top.glob(_FILES)), transport, str(top))
        return {key: _path(top, key) for key in keys}

    _load(handle, found)


def holds_state(folder: str | os.PathLike[str]) -> bool:
    """Whether `save` has written to a folder."""
    return any(Path(folder).glob(_FILES))


def stateful(handle: Handle, checkpoint: Any = None) -> Stateful:
    """The state of a handle on all ranks, for `torch.distributed.checkpoint`.

    Save and load it with the model: `dcp.save({"model": ..., "grace": grace.stateful(handle)}, checkpoint_id=folder)`. To load on a different
    number of ranks, name the checkpoint here as well, because it determines what there is to load:
    `grace.stateful(handle, folder)`. `checkpoint` is a folder, or a `StorageReader`.
    """
    return Stateful(handle, checkpoint)


class Stateful:
    """See `stateful`. Each rank saves under a key of its own, and as bytes: a new handle has no tensors to load into."""

    def __init__(self, handle: Handle, checkpoint: Any = None) -> None:
        self._handle, self._checkpoint = _handle(handle), checkpoint

    def state_dict(self) -> dict[str, Any]:
        transport = self._handle.session.transport
        if self._checkpoint is not None:
            return dict.fromkeys(_wanted(self._saved(), transport, str(self._checkpoint)), b"")
        buffer = io.BytesIO()
        torch.save(self._handle.state_dict(), buffer)
        return {_key(transport): buffer.getvalue()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _load(self._handle, lambda: {key: io.BytesIO(content) for key, content in state.items()})

    def _saved(self) -> Iterable[str]:
        from torch.distributed.checkpoint import FileSystemReader

        source = self._checkpoint
        reader = FileSystemReader(source) if isinstance(source, (str, os.PathLike)) else source
        return list(reader.read_metadata().state_dict_metadata)


def _handle(value: Any) -> Handle:
    if not isinstance(value, Handle):
        raise ConfigError(
            f"a checkpoint is of a handle, not of {type(value).__name__}; pass what grace.attach returned."
        )
    return value


def _folder(value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value).strip():
        raise ConfigError(f"{value!r} is not a folder for a checkpoint; name one, such as 'checkpoint'.")
    return Path(value)


def restore(handle: Handle, state: Any) -> None:
    """Load the state of this rank, or a list of those of all ranks. The handle keeps its method; after an error, its state too."""
    wanted, first = handle.method, state[0] if isinstance(state, list) and state else state
    saved = first.get("method") if isinstance(first, Mapping) else None
    if not isinstance(saved, str) or saved == str(wanted):
        handle.load_state_dict(state)
        return
    before = handle.state_dict()  # the other method has no place for momenta
    handle.switch(saved)
    try:
        handle.load_state_dict(state)
    except BaseException:
        handle.switch(wanted)
        handle.load_state_dict(before)
        raise
    handle.switch(wanted)


def _key(transport: Transport) -> str:
    """The key of this rank; ranks of different groups of one job have different keys."""
    key, distributed = f"rank{transport.rank}-of-{transport.size}", torch.distributed
    running = distributed.is_available() and distributed.is_initialized()
    if running and distributed.get_world_size() != transport.size:
        key += f".process{distributed.get_rank()}"
    return key


def _path(folder: Path, key: str) -> Path:
    return folder / f"grace-{key}.pt"


def _parsed(name: str) -> tuple[int, int]:
    match = _KEY.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _wanted(names: Iterable[str], transport: Transport, where: str) -> list[str]:
    """The keys to load: that of this rank if it is there, otherwise those of all ranks."""
    held = list(names)
    own = _key(transport)
    found: dict[int, set[int]] = {}
    for name in held:
        rank, size = _parsed(name)
        found.setdefault(size, set()).add(rank)
    if any(re.fullmatch(rf"(.*[.-])?{re.escape(own)}", name) for name in held):
        return [own]
    complete = [size for size, ranks in found.items() if size and len(ranks) == size]
    if len(complete) == 1 and ".process" not in own:
        return [f"rank{rank}-of-{complete[0]}" for rank in range(complete[0])]
    listed = "; ".join(f"ranks {sorted(ranks)} of {size}" for size, ranks in found.items() if size)
    raise StateError(
        f"{where} has no state of every rank of one job (found: {listed or 'none'}); every rank must save its own, with grace.save() or "
        "grace.stateful()."
    )


def _load(handle: Handle, find: Callable[[], Mapping[str, Any]]) -> None:
    """Load the files that `find` returns by key, on all ranks or on none."""
    transport, failure, states, text = handle.session.transport, None, [], ""
    sources: Mapping[str, Any] = {}
    try:
        sources = find()
        states = [read(source, key) for key, source in sources.items()]
        for state in states:
            saved_state.check(state, str(state.get("method")) if isinstance(state, Mapping) else "")
        # Files that were replaced on some ranks only are of different steps.
        text = f"a checkpoint of {states[0]['method']}, steps {digest(states[0]['steps'])}"
    except StateError as error:
        failure, text = error, f"a checkpoint that cannot be loaded: {error}"
    try:
        transport.agree(text)
    except LayoutError as error:
        raise failure or StateError(f"no rank has loaded its state: {error}") from error
    if failure is not None:
        raise failure
    restore(handle, states[0] if list(sources) == [_key(transport)] else states)


def read(source: Any, what: str) -> Any:
    """A saved state from a file."""
    try:
        # Tensors, numbers and text only: loading runs no code from the file.
        return torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateError(f"the state of {what} cannot be read: {error}; load an older checkpoint.") from error
