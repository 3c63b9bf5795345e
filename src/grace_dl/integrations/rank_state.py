"""The state of all ranks in checkpoints of other frameworks: gathered on rank 0, or as one file for each rank.

Ranks are those of the whole job: on a hybrid mesh, the groups that exchange gradients are smaller.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..checkpoints import holds_state, load, read, restore
from ..errors import StateError
from ..handle import Handle
from ..transport import Transport, detect


def gather_state(handle: Handle) -> dict[str, Any]:
    """The states of all ranks, for rank 0 to save; empty on other ranks. Call it on all ranks."""
    transport = detect()
    own = _packed(handle.state_dict()).to(_device(transport))
    nothing = [0] * transport.size
    sizes = _everyone(transport, own.numel())
    expected = sizes if transport.rank == 0 else nothing
    received = own.new_empty(sum(expected))
    transport.alltoall(received, own, expected, [own.numel(), *nothing[1:]]).wait()
    if transport.rank != 0:
        return {}
    # Kept as bytes: each rank decodes only its own.
    ranks = [part.clone() for part in received.cpu().split(sizes)]
    return {"world_size": transport.size, "ranks": ranks}


def scatter_state(handle: Handle, saved: Any) -> None:
    """Load what `gather_state` returned on rank 0. Call it on all ranks, each with the same `saved`."""
    transport = detect()
    ranks = saved.get("ranks") if isinstance(saved, Mapping) else None
    if not isinstance(ranks, list) or len(ranks) != saved.get("world_size") or not ranks:
        raise StateError(
            "the checkpoint's GRACE state is damaged, or was not saved by GRACE; use another checkpoint."
        )
    if len(ranks) == transport.size:
        restore(handle, _unpacked(ranks[transport.rank]))
    else:
        restore(handle, [_unpacked(packed) for packed in ranks])


def load_state(handle: Handle, folder: str | os.PathLike[str]) -> bool:
    """Load what `grace.save` wrote; False, with a warning, if there is nothing. Call it on all ranks."""
    found = _everyone(detect(), int(holds_state(folder)))
    if not any(found):
        warnings.warn(f"{folder} has no state of GRACE; residuals start from zero.", stacklevel=2)
        return False
    if not all(found):
        missing = [rank for rank, held in enumerate(found) if not held]
        raise StateError(
            f"{folder} lacks GRACE's files on rank(s) {missing} of {len(found)}; give all ranks a shared folder, or "
            "copy the files to every machine."
        )
    load(handle, folder)
    return True


def _packed(state: Mapping[str, Any]) -> Tensor:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def _unpacked(packed: Any) -> Any:
    if not isinstance(packed, Tensor) or packed.dtype != torch.uint8:
        raise StateError("the checkpoint's GRACE state is damaged; use another checkpoint.")
    return read(io.BytesIO(packed.cpu().numpy().tobytes()), "the checkpoint")


def _everyone(transport: Transport, own: int) -> list[int]:
    """One number from every rank."""
    mine = torch.tensor([own], device=_device(transport))
    everyone = torch.empty(transport.size, dtype=mine.dtype, device=mine.device)
    transport.allgather(everyone, mine).wait()
    numbers: list[int] = everyone.tolist()
    return numbers


def _device(transport: Transport) -> torch.device:
    """A device whose tensors the process group can exchange."""
    only_cuda = dist.is_initialized() and dist.get_backend() == "nccl" and transport.size > 1
    return torch.device("cuda", torch.cuda.current_device()) if only_cuda else torch.device("cpu")
