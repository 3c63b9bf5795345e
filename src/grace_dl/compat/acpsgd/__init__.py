"""ACP-SGD with an interface like Horovod's, over `torch.distributed`: under `torchrun` or in a single process.

Imported as `acpsgd`.

    import acpsgd

    acpsgd.init()
    optimizer = acpsgd.DistributedOptimizer(optimizer, model.named_parameters(), rank=4)
    acpsgd.broadcast_parameters(model.state_dict(), root_rank=0)

`method="powersgd"` and `method="ssgd"` run PowerSGD and plain averaging through the same code, for a fair
comparison.
"""

from __future__ import annotations

from .broadcast import broadcast_optimizer_state, broadcast_parameters
from .optimizer import METHODS, THRESHOLD, DistributedOptimizer
from .world import allreduce, init, is_initialized, local_rank, rank, shutdown, size

__all__ = [
    "METHODS",
    "THRESHOLD",
    "DistributedOptimizer",
    "allreduce",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init",
    "is_initialized",
    "local_rank",
    "rank",
    "shutdown",
    "size",
]
