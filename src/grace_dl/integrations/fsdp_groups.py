"""What FSDP2 knows of a sharded model: groups of parameters that are reduced together, their names and process groups.

All access to internals of `torch.distributed.fsdp` is here (written for torch 2.13).
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..compressor.base import narrow
from ..errors import ConfigError, UnsupportedError
from ..names import canonical_names
from ..pipeline.bucket import check


def is_sharded(model: Any) -> bool:
    """Whether `fully_shard` was applied to a model, or to modules of it."""
    return isinstance(model, nn.Module) and bool(_states(model))


def find_groups(model: nn.Module) -> list[Group]:
    """The parameter groups of a sharded model; raises if they cannot be compressed together."""
    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise UnsupportedError(
                f"the gradient of {f'{name}.weight'.lstrip('.')!r} is sparse, which FSDP2 cannot reduce; build the layer with "
                "sparse=False."
            )
    groups: list[Group] = []
    for state in _states(model):
        found = state._fsdp_param_groups
        if len(found) > 1:
            raise ConfigError(
                f"{_name_of(found[0], names)} shards its parameters over several meshes (shard_placement_fn); use one mesh "
                "for each module."
            )
        groups += [Group(index, group, names) for index, group in enumerate(found, len(groups))]
    parameters = [parameter for group in groups for parameter in group.all_parameters]
    for parameter, name in zip(parameters, canonical_names([parameter.name for parameter in parameters])):
        parameter.name = name
    if not groups:
        raise ConfigError("the sharded modules have no parameters; shard modules that do, then attach.")
    meshes = {group.ranks for group in groups}
    if len(meshes) > 1:
        raise ConfigError(
            f"the model's modules are sharded over different ranks ({', '.join(map(str, sorted(meshes)))}); attach to each "
            "part that uses one mesh."
        )
    return groups


def _states(model: nn.Module) -> list[Any]:
    """The FSDP states of a model, one for each call of `fully_shard`."""
    from torch.distributed.fsdp import FSDPModule

    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    return list(dict.fromkeys(states))


def _name_of(group: Any, names: dict[nn.Module, str]) -> str:
    return ", ".join(repr(names.get(module, "") or type(module).__name__) for module in group.modules)


class Parameter:
    """A sharded parameter."""

    def __init__(self, parameter: Any, names: dict[nn.Module, str]) -> None:
        self._parameter = weakref.ref(parameter)
        info = parameter._module_info
        prefix = names.get(info.module, "")
        self.name = f"{prefix}.{info.param_name}" if prefix else info.param_name
        if self.trained:
            check(parameter.sharded_param.to_local(), self.name)

    @property
    def _found(self) -> Any:
        found = self._parameter()
        assert found is not None  # its module calls this
        return found

    @property
    def trained(self) -> bool:
        return bool(self._found.sharded_param.requires_grad)

    @property
    def padded(self) -> int:
        """Elements that every rank has of it, with padding."""
        return int(self._found.padded_sharded_param_size.numel())

    @property
    def shape(self) -> torch.Size:
        """The shape of this rank's shard."""
        found: torch.Size = self._found.sharded_size
        return found

    def check_hooks(self) -> None:
        """Reject hooks that would see the gradient before it has arrived."""
        if self._found.sharded_param._post_accumulate_grad_hooks:
            raise UnsupportedError(
                f"{self.name!r} has a post-accumulate-grad hook, which runs before its compressed gradient has arrived; "
                "use the gradient after backward() instead."
            )

    def add_gradient(self, result: Tensor, factor: float) -> None:
        """Add what arrived to the gradient, which FSDP has stored or accumulated without it."""
        local = self._found.sharded_param.grad.to_local()
        shard = result[: local.numel()].view(local.shape)
        local.add_(narrow(shard if factor == 1 else shard * factor, local.dtype).to(local.device))


class Group:
    """Parameters whose gradients FSDP reduces in one call."""

    def __init__(self, index: int, group: Any, names: dict[nn.Module, str]) -> None:
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo

        self.index = index
        self.name = _name_of(group, names)
        self._group = weakref.ref(group)
        self.all_parameters = [Parameter(parameter, names) for parameter in group.fsdp_params]
        if not isinstance(group.mesh_info, FSDPMeshInfo):
            raise ConfigError(f"{self.name} is replicated, not sharded; wrap it in DistributedDataParallel.")
        self._hybrid = isinstance(group.mesh_info, HSDPMeshInfo)
        if self._hybrid and group.mesh_info.shard_mesh_size == 1:
            raise ConfigError(
                f"{self.name} is sharded over a single rank; without sharding, use DistributedDataParallel."
            )
        self._workers = group.mesh_info.shard_mesh_size * getattr(group.mesh_info, "replicate_mesh_size", 1)

    @property
    def _found(self) -> Any:
        found = self._group()
        assert found is not None  # its module calls this
        return found

    @property
    def comm(self) -> Any:
        return self._found._reduce_scatter_comm

    @property
    def shard_group(self) -> Any:
        return self._found._reduce_scatter_process_group

    @property
    def replica_group(self) -> Any:
        """The process group of the replicas of a shard; None without replicas."""
        return self._found._all_reduce_process_group if self._hybrid else None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks among which it is reduced."""
        groups = [self.shard_group, self.replica_group]
        return tuple(
            rank for g in groups if g is not None for rank in torch.distributed.get_process_group_ranks(g)
        )

    # Attaching ----------------------------------------------------------------------------------------

    def take_over(self, comm: Any) -> None:
        """Have FSDP call `comm`, and leave the all-reduce over replicas to it."""
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

        group = self._found
        info = group.mesh_info
        comm.before = (info, group._reduce_scatter_comm)
        if self._hybrid:
            fields = {f.name: getattr(info, f.name) for f in dataclasses.fields(FSDPMeshInfo) if f.init}
            alone = FSDPMeshInfo(**{**fields, "replicate_mesh_dim": None})
            alone.reduce_scatter_process_group = info.reduce_scatter_process_group
            self._set_mesh(alone)
        group._reduce_scatter_comm = comm

    def give_back(self) -> None:
        """Undo `take_over`."""
        group = self._group()
        if group is not None:
            info, group._reduce_scatter_comm = group._reduce_scatter_comm.before
            if self._hybrid:
                self._set_mesh(info)

    def _set_mesh(self, info: Any) -> None:
        group = self._found
        if group.post_forward_mesh_info is group.mesh_info:  # shards are kept as they are after forward
            group.post_forward_mesh_info = info
        group.mesh_info = info

    # A call of the reduce-scatter ---------------------------------------------------------------------

    def parameters(self, numel: int) -> list[Parameter]:
        """The parameters in a call with `numel` gradient elements."""
        group = self._found
        if self._hybrid and not group.all_reduce_grads:
            raise UnsupportedError(
                "set_requires_all_reduce(False) is not supported on a compressed model; accumulate with "
                "set_requires_gradient_sync(False)."
            )
        trained = [parameter for parameter in self.all_parameters if parameter.trained]
        expected = sum(parameter.padded for parameter in trained) * group.mesh_info.shard_mesh_size
        if numel != expected:
            raise UnsupportedError(
                f"some parameters of {self.name} got no gradient; call set_reduce_scatter_unused_params(True) of the model, "
                "or freeze those parameters."
            )
        for parameter in trained:
            parameter.check_hooks()
        return trained

    def factor(self, dtype: torch.dtype) -> float:
        """What the average over all ranks is multiplied by to get FSDP's result, which is the sum divided by
        `set_gradient_divide_factor`. For some dtypes FSDP divides in part before the reduce-scatter.
        """
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

        group = self._found
        given = group.gradient_divide_factor
        first, *_ = _get_gradient_divide_factors(
            self.shard_group, None, dtype, group.device.type, given, group.force_sum_reduction_for_comms
        )
        return (first or 1) * (1 if given is None else self._workers / given)
