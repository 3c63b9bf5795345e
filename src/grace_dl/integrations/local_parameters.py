"""The parameters that `LocalSteps` exchanges: their names, shards, fragments and buckets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..digest import digest
from ..errors import ConfigError
from ..names import canonical, canonical_names
from ..pipeline.bucket import fill
from ..transport import Transport, detect
from ..transport.torch_dist import TorchTransport
from .optimizer import is_attached
from .reducer import BUCKET_BYTES

Outer = torch.optim.Optimizer | Callable[[Iterable[Tensor]], torch.optim.Optimizer]


def shard(tensor: Tensor) -> Tensor:
    """The memory of a parameter; of a sharded one, this rank's shard."""
    to_local = getattr(tensor, "to_local", None)
    found: Tensor = tensor if to_local is None else to_local()
    return found.detach()


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def gradient_like(parameter: Tensor, result: Tensor) -> Tensor:
    """A gradient of `parameter` with these elements."""
    gradient = torch.empty_like(parameter)
    shard(gradient).copy_(result)
    return gradient


def transport_of(group: Any) -> Transport:
    """The ranks of a process group or mesh; of the running engine if it is None."""
    if group is None:
        return detect()
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            axis = (group.mesh_dim_names or ("replicate",))[0]
            raise ConfigError(
                f"group={group} has {group.ndim} dimensions, and ranks exchange along one; pass an axis, such as mesh[{axis!r}]."
            )
        group = group.get_group()
    return TorchTransport(group)


K = TypeVar("K", bound=Hashable)


def grouped(keys: Sequence[K], tensors: Any) -> list[list[K]]:
    """Keys of tensors that share a bucket."""
    return fill(
        keys, BUCKET_BYTES, lambda k: (tensors[k].dtype, tensors[k].device), lambda k: tensors[k].nbytes
    )


def trainable(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The parameters to exchange, by names that do not depend on wrappers."""
    if is_attached(optimizer):
        raise ConfigError(
            "this optimizer's gradients are exchanged at every step already; close() its handle to train with local steps."
        )
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters: dict[str, Tensor] = dict(zip(canonical_names(list(named)), named.values()))
    known = set(parameters.values())
    strange = sum(p not in known for group in optimizer.param_groups for p in group["params"])
    if strange or not parameters:
        raise ConfigError(
            f"{strange} parameters of the optimizer are not trainable parameters of the model, which has "
            f"{len(parameters)}; pass the model that the optimizer trains."
        )
    return parameters


def check_complete(
    model: nn.Module, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]
) -> None:
    """Raise if the optimizer now trains a parameter that is not exchanged."""
    known = set(parameters.values())
    new = [
        p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p not in known
    ]
    if new:
        names = {parameter: canonical(name) for name, parameter in model.named_parameters()}
        found = [repr(names[p]) if p in names else "a parameter that is not in the model" for p in new]
        raise ConfigError(
            f"the optimizer trains {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}, which this object does not exchange, because it "
            "was frozen or absent when LocalSteps was created; ranks would differ in it. Call synchronize() and close() before you "
            "unfreeze or add parameters, then create LocalSteps again."
        )


def divide(parameters: Mapping[str, Tensor], count: int) -> list[list[str]]:
    """Consecutive parameters in `count` parts of about equal size."""
    if count > len(parameters):
        raise ConfigError(
            f"fragments={count} is more than the {len(parameters)} parameters of the model; use fewer."
        )
    total = sum(p.numel() for p in parameters.values())
    parts: list[list[str]] = [[] for _ in range(count)]
    before = 0
    for place, (name, parameter) in enumerate(parameters.items()):
        by_size = (before + parameter.numel() // 2) * count // max(total, 1)
        # No part stays empty, however unequal the sizes are.
        part = min(max(by_size, count - (len(parameters) - place)), place, count - 1)
        parts[part].append(name)
        before += parameter.numel()
    return parts


def outer_optimizer(outer: Outer | None, parameters: Mapping[str, Tensor]) -> torch.optim.Optimizer | None:
    """The outer optimizer, checked to have exactly these parameters."""
    if outer is None or isinstance(outer, torch.optim.Optimizer):
        made = outer
    elif callable(outer):
        made = outer(list(parameters.values()))
    else:
        raise ConfigError(
            f"outer={outer!r} is no optimizer; pass torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)."
        )
    if made is not None:
        mine = {p for group in made.param_groups for p in group["params"]}
        if mine != set(parameters.values()):
            raise ConfigError(
                "the outer optimizer must have exactly the trainable parameters of the model; pass model.parameters()."
            )
    return made


def described(
    settings: Mapping[str, Any],
    outer: torch.optim.Optimizer | None,
    model: nn.Module,
    parameters: Mapping[str, Tensor],
) -> str:
    """What must be the same on all ranks, as text."""
    rules = [
        ", ".join(
            f"{key}={value}" for key, value in group.items() if isinstance(value, (bool, int, float, tuple))
        )
        for group in (() if outer is None else outer.param_groups)
    ]
    made = "None" if outer is None else f"{type(outer).__name__}({'; '.join(rules)})"
    tensors = [*map(shard, parameters.values()), *model.buffers()]
    shapes = digest([list(parameters), [f"{t.dtype} {tuple(t.shape)}" for t in tensors]])
    return (
        f"local steps with {', '.join(f'{key}={value}' for key, value in settings.items())}, outer={made}, "
        f"{len(parameters)} parameters and {len(tensors) - len(parameters)} buffers of shapes {shapes[:8]}"
    )


def applies_as_is(outer: torch.optim.Optimizer | None) -> bool:
    """Whether the averaged difference is applied unchanged: without an outer optimizer, or by plain SGD with rate 1."""
    if outer is None:
        return True
    # A subclass may do anything in its step.
    return type(outer) is torch.optim.SGD and all(
        group["lr"] == 1 and not (group["momentum"] or group["weight_decay"] or group["maximize"])
        for group in outer.param_groups
    )


def outer_sgd(lr: float, momentum: float) -> Outer:
    """SGD with Nesterov momentum, if any, as DiLoCo's outer optimizer."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=momentum > 0)
