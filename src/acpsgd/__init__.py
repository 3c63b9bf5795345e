"""ACP-SGD's distributed optimizer, used like Horovod's; part of GRACE (`grace_dl`).

import acpsgd

acpsgd.init()
optimizer = acpsgd.DistributedOptimizer(optimizer, model.named_parameters(), rank=4)
"""

from grace_dl.compat.acpsgd import (
    METHODS,
    THRESHOLD,
    DistributedOptimizer,
    allreduce,
    broadcast_optimizer_state,
    broadcast_parameters,
    init,
    is_initialized,
    local_rank,
    rank,
    shutdown,
    size,
)

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
