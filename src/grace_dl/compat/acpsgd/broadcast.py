"""Broadcast parameters and optimizer state before training starts or resumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ConfigError
from ...handle import Handle
from ...integrations.checkpoint import with_residuals, without_residuals
from ...transport.torch_dist import carried
from . import world


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Tensor]] | Iterable[Tensor], root_rank: int = 0
) -> None:
    """Broadcast `model.state_dict()`, `model.named_parameters()` or a list of tensors from `root_rank`."""
    _check_root(root_rank)
    items = list(params.values() if isinstance(params, Mapping) else params)
    for item in items:
        value = item[1] if isinstance(item, tuple) and len(item) == 2 else item
        if not isinstance(params, Mapping) and not isinstance(value, Tensor):
            raise ConfigError(
                f"broadcast_parameters found {type(item).__name__}; pass model.state_dict(), model.named_parameters() or a "
                "list of tensors."
            )
        if isinstance(value, Tensor):
            _broadcast_(value.data, root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Broadcast an optimizer's state from `root_rank`: hyper-parameters, momenta, step counts and factors.

    A worker keeps its residuals if they belong to the same step as the root's; otherwise they start from zero.
    """
    _check_root(root_rank)
    if world.size() == 1:
        return
    plain = {key: value for key, value in optimizer.state_dict().items() if key in ("state", "param_groups")}
    sent = _share(plain, root_rank)
    if world.rank() != root_rank:
        optimizer.load_state_dict(sent)
    handle = getattr(optimizer, "grace", None)
    if isinstance(handle, Handle):
        transport, own = handle.session.transport, handle.state_dict()
        shared = _share(without_residuals(own, transport.rank, transport.size), root_rank)
        if world.rank() != root_rank:
            handle.load_state_dict(with_residuals(shared, own))


def _share(value: Any, root: int) -> Any:
    """Broadcast a nested value: its structure as one object, its tensors one by one."""
    tensors: list[Tensor] = []
    described = [_describe(value, tensors) if world.rank() == root else None]
    dist.broadcast_object_list(described, src=root)
    if world.rank() == root:
        for tensor in tensors:
            dist.broadcast(carried(tensor.detach()), src=root)
        return value
    return _rebuild(described[0], root)


class _Slot:
    """Placeholder for a tensor in a value that is sent as an object."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device.type


def _describe(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Slot(value)
    if isinstance(value, Mapping):
        return {key: _describe(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_describe(item, tensors) for item in value)
    return value


def _rebuild(value: Any, root: int) -> Any:
    if isinstance(value, _Slot):
        tensor = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        _broadcast_(tensor, root)
        return tensor
    if isinstance(value, Mapping):
        return {key: _rebuild(item, root) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_rebuild(item, root) for item in value)
    return value


def _broadcast_(tensor: Tensor, root: int) -> None:
    if world.size() == 1:
        return
    whole = carried(tensor)
    dist.broadcast(whole, src=root)
    if whole is not tensor:
        tensor.copy_(whole)


def _check_root(root: int) -> None:
    if not 0 <= root < world.size():
        raise ConfigError(f"root_rank={root} is no worker; there are {world.size()}, counted from 0.")
