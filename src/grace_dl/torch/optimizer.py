"""`hvd.DistributedOptimizer(optimizer, grace=...)`: Horovod's optimizer, with the gradients exchanged by GRACE.

Gradients are compressed and sent while backward runs, and are in place when `backward()` returns; `synchronize()` then has
nothing left to do. Options that mean something with compression work as in Horovod, the others are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor

from ..communicator.base import Communicator
from ..dist.optimizer import named
from ..errors import ConfigError
from ..pipeline.horovod_reducer import HorovodReducer
from ..telemetry import Stats


def distributed(
    grace: Communicator,
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = hvd.Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = hvd.global_process_set,
) -> torch.optim.Optimizer:
    """The optimizer that `hvd.DistributedOptimizer(..., grace=grace)` returns; arguments as Horovod's."""
    if not isinstance(grace, Communicator):
        raise ConfigError(
            f"grace={grace!r} is no communicator; build one with grace_from_params({{'compressor': 'topk'}})."
        )
    refuse(compression, op, gradient_predivide_factor, num_groups, groups)
    if backward_passes_per_step < 1:
        raise ConfigError(f"backward_passes_per_step={backward_passes_per_step} must be 1 or more.")
    names = named(optimizer, named_parameters)
    process_set = hvd.global_process_set if process_set is None else process_set
    reducer = None
    if process_set.included():
        reducer = HorovodReducer(
            names,
            grace,
            process_set=process_set,
            passes=backward_passes_per_step,
            sum_=op == hvd.Sum,
            sparse_as_dense=sparse_as_dense,
        )
    return _subclass(type(optimizer))._around(optimizer, grace, reducer)


def refuse(compression: Any, op: Any, predivide: float, num_groups: int, groups: Any) -> None:
    """Say no, in words, to options of Horovod that cannot go together with compression."""
    if op == hvd.Adasum:
        raise ConfigError(
            "op=hvd.Adasum cannot be combined with grace: Adasum weighs full gradients against each other on the way, "
            "which compressed ones do not allow. Use op=hvd.Average or hvd.Sum, or Adasum without grace."
        )
    if op not in (hvd.Average, hvd.Sum):
        raise ConfigError(f"op={op!r} cannot be combined with grace; use hvd.Average or hvd.Sum.")
    if compression is not hvd.Compression.none:
        raise ConfigError(
            f"compression={getattr(compression, '__name__', compression)!r} and grace are two compressions of one "
            "gradient; leave compression out (the same as a method of ours: grace_from_params({'compressor': 'fp16'}))."
        )
    if predivide != 1.0:
        raise ConfigError(
            f"gradient_predivide_factor={predivide} has no meaning with grace, which averages in float32 after "
            "decoding; leave it out."
        )
    if num_groups or groups is not None:
        raise ConfigError(
            "num_groups and groups cannot be combined with grace, which puts gradients in buckets of its own; leave "
            "them out."
        )


def _subclass(base: type[torch.optim.Optimizer]) -> Any:
    """A class that behaves as the optimizer's own, and is told from it by Horovod through its `__module__`."""

    class Distributed(base):  # type: ignore[valid-type, misc]
        @classmethod
        def _around(
            cls,
            optimizer: torch.optim.Optimizer,
            grace: Communicator,
            reducer: HorovodReducer | None,
        ) -> Any:
            self = object.__new__(cls)
            # Shares state and parameter groups; `step` may be there as a scheduler's wrapper of the old object's.
            self.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
            self.grace = grace
            self._grace_reducer = reducer
            self._grace_skip = False
            return self

        @property
        def backward_passes_per_step(self) -> int:
            return self._grace_reducer.passes if self._grace_reducer is not None else 1

        def set_backward_passes_per_step(self, passes: int) -> None:
            """Exchange after that many backward passes from now on."""
            if passes < 1:
                raise ConfigError(f"backward_passes_per_step={passes} must be 1 or more.")
            if self._grace_reducer is not None:
                self._grace_reducer.passes = passes

        def stats(self) -> Stats:
            """Bytes, collectives and seconds so far, of this rank."""
            return self.grace.stats.copy()

        def synchronize(self) -> None:
            """Exchange what backward passes have left; after an ordinary `backward()` nothing is left."""
            reducer = self._grace_reducer
            if reducer is not None and reducer.pending:
                reducer.finish()

        @contextlib.contextmanager
        def skip_synchronize(self) -> Iterator[None]:
            """Within it, `step()` takes the gradients as they are."""
            self._grace_skip = True
            try:
                yield
            finally:
                self._grace_skip = False

        def step(self, closure: Any = None) -> Any:
            if closure is not None:
                # The closure runs backward, which exchanges: what is there before it is not a step's gradient.
                loss = super().step(closure)
            else:
                if not self._grace_skip:
                    self.synchronize()
                loss = super().step()
            if self._grace_reducer is not None:
                self._grace_reducer.settled = False
            return loss

        def load_state_dict(self, *arguments: Any, **keywords: Any) -> None:
            if self._grace_reducer is not None:
                self._grace_reducer.forget()
            super().load_state_dict(*arguments, **keywords)

    Distributed.__name__ = Distributed.__qualname__ = base.__name__
    # hvd.broadcast_optimizer_state steps past a class of this module, to fill a new optimizer's state without exchange.
    Distributed.__module__ = "horovod.torch.optimizer"
    return Distributed
