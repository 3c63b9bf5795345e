"""The workers: one process group for the job, or a single process."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ConfigError
from ...transport.torch_dist import carried

_ours = False
_initialized = False


def init(backend: str | None = None, timeout: float | None = None) -> None:
    """Join the other workers started by `torchrun`, if any. An existing process group is used.

    `backend`: that of `torch.distributed`; NCCL where there are GPUs, else Gloo. `timeout`: seconds after which a
    missing worker raises an error.
    """
    global _initialized, _ours
    if not dist.is_initialized() and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(local_rank() % torch.cuda.device_count())
        limit = None if timeout is None else datetime.timedelta(seconds=timeout)
        dist.init_process_group(backend or ("nccl" if cuda else "gloo"), timeout=limit)
        _ours = True
    _initialized = True


def shutdown() -> None:
    """Destroy the group that `init` created; a group created elsewhere is kept."""
    global _initialized, _ours
    if _ours and dist.is_initialized():
        dist.destroy_process_group()
    _initialized = _ours = False


def is_initialized() -> bool:
    """Whether `init` was called."""
    return _initialized


def rank() -> int:
    """This worker's number, from 0."""
    _check()
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """The number of workers."""
    _check()
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """This worker's number on its own machine."""
    return int(os.environ.get("LOCAL_RANK", 0))


def allreduce(tensor: Tensor, name: str | None = None, *, average: bool = True) -> Tensor:
    """The average (or sum) of a tensor over workers, for metrics. All workers must call it in the same order."""
    _check()
    if isinstance(name, bool):
        raise ConfigError(f"allreduce(tensor, {name}): the second argument is a name; write average={name}.")
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    if size() > 1:
        whole = carried(result)
        dist.all_reduce(whole)
        result = whole.to(result.device)
    if average:
        result = result / size() if result.is_floating_point() else result // size()
    return result


def _check() -> None:
    if not (_initialized or dist.is_initialized()):
        raise ConfigError("workers have not met yet; call acpsgd.init() first.")
