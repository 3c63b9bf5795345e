"""Deep gradient compression as a system: compressor, memory, optimizer, clipping and warm-up (Lin 2018, ICLR).

Imported as `dgc`, with the modules, names and parameters of the authors' code, over the method `grace.dgc`:

    memory = DGCSGDMemory(momentum=0.9)
    compression = DGCCompressor(0.001, memory=memory, warmup_epochs=5)
    optimizer = DGCSGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

Then either `grace.attach(ddp_model, compression)`, or without DDP (single process, torch.distributed or Horovod)
`optimizer = DistributedOptimizer(optimizer, model.named_parameters(), compression)`.
"""

from __future__ import annotations

from .clip_grad import (
    clip_grad_norm_,
    clip_grad_norm_2_by_global_,
    clip_grad_value_,
    clip_grad_value_by_global_norm_,
)
from .compression import DGCCompressor
from .memory import DGCSGDMemory
from .optimizer import DistributedOptimizer
from .sgd import DGCSGD

__all__ = [
    "DGCSGD",
    "DGCCompressor",
    "DGCSGDMemory",
    "DistributedOptimizer",
    "clip_grad_norm_",
    "clip_grad_norm_2_by_global_",
    "clip_grad_value_",
    "clip_grad_value_by_global_norm_",
]
