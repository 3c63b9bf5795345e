"""Attaching to an optimizer: under Horovod, under `torch.distributed` without DDP, or in a single process."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..algebra.base import Method
from ..errors import ConfigError
from ..handle import Handle
from ..names import canonical_names
from ..session import Session
from ..transport import Transport
from ..tuning.tuner import AutoTuner
from .reducer import Options, Reducer

attached: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def is_attached(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a handle exchanges the gradients of this optimizer."""
    return optimizer in attached


class OptimizerHandle(Handle):
    """The handle of an optimizer. The optimizer's hooks own it, so it holds only a weak reference to the optimizer."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        method: Method,
        transport: Transport,
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
        *,
        hooked: bool = True,
        **options: Any,
    ) -> None:
        if is_attached(optimizer):
            raise ConfigError(
                "this optimizer's gradients are compressed already; use switch() of its handle, or close() that first."
            )
        names = _names(optimizer, named_parameters)
        settings = Options(**options)
        warn_of_ddp(names, transport, "attach to the model instead: grace.attach(ddp_model, method)")
        self._optimizer = weakref.ref(optimizer)
        super().__init__(Session(method, transport, tuner=AutoTuner))
        self._given = names
        self.reducer = Reducer(self.session, self._named, settings)
        self._hooks: list[Any] = []
        if hooked:  # otherwise a wrapper around the optimizer calls `before_step` and `after_step`
            self._hooks = [
                # The first argument of `step` is the optimizer itself.
                optimizer.register_step_pre_hook(
                    lambda _, a, k: self.before_step(a[1] if len(a) > 1 else k.get("closure"))
                ),
                optimizer.register_step_post_hook(lambda *_: self.after_step()),
            ]
        attached.add(optimizer)

    def _named(self) -> list[tuple[str, Tensor]]:
        """The optimizer's parameters with their names; parameters of groups added later are named by position."""
        optimizer = self._optimizer()
        if optimizer is None:
            return []
        found = []
        for place, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                found.append((self._given.setdefault(parameter, f"group{place}.{i}"), parameter))
        return found

    def _parameter_sizes(self) -> Mapping[str, int]:
        return {name: parameter.numel() for name, parameter in self._named()}

    def synchronize(self) -> None:
        """Exchange the remaining gradients of this step; a no-op after an ordinary `backward()`."""
        if not self.closed and (self.reducer.unfinished or not self.reducer.settled):
            self.reducer.finish()

    def before_step(self, closure: Any = None) -> None:
        """Called before an optimizer step. A closure runs backward itself, so earlier gradients are not exchanged."""
        if closure is None:
            self.synchronize()

    def after_step(self) -> None:
        """Called after an optimizer step."""
        self.reducer.settled = False

    def _busy(self) -> bool:
        return self.reducer.busy

    def _switched(self) -> None:
        self.reducer.refill()

    def _release(self) -> None:
        self.reducer.close()
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if optimizer is not None:
            attached.discard(optimizer)


def warn_of_ddp(parameters: Collection[Tensor], transport: Transport, remedy: str) -> None:
    """Warn if a DDP model exchanges the gradients of these parameters already."""
    if transport.size > 1 and _averaged_by_ddp(parameters):
        warnings.warn(
            "this optimizer's parameters belong to a DistributedDataParallel model, which exchanges their gradients "
            f"uncompressed before the optimizer's handle exchanges them again; {remedy}.",
            stacklevel=4,
        )


def _averaged_by_ddp(parameters: Collection[Tensor]) -> bool:
    """Whether DDP models in use hold some of the parameters. DDP keeps no list of its models."""
    own = set(parameters)  # by identity; a search in a list would compare values

    def found() -> bool:
        models = [o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel)]
        return any(not own.isdisjoint(model.parameters()) for model in models)

    if not found():
        return False
    gc.collect()  # models that were dropped do not count
    return found()


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """The names of the optimizer's parameters; without given names they are numbered, as in Horovod."""
    groups = [group["params"] for group in optimizer.param_groups]
    if named_parameters is None:
        return {p: f"allreduce.noname.{i}.{j}" for i, group in enumerate(groups) for j, p in enumerate(group)}
    pairs = list(named_parameters) if isinstance(named_parameters, Iterable) else [named_parameters]
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ConfigError("named_parameters must be pairs (name, parameter); pass model.named_parameters().")
    kept = canonical_names([name for name, _ in pairs])
    names = {p: name for name, (_, p) in reversed(list(zip(kept, pairs)))}
    missing = sum(p not in names for group in groups for p in group)
    if missing:
        raise ConfigError(
            f"{missing} parameters of the optimizer are not in named_parameters; pass model.named_parameters() of "
            "the whole model, and of every model the optimizer serves."
        )
    return names
