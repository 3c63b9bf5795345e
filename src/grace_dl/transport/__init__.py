"""Transports: a few collectives on top of each engine, one module per engine."""

from __future__ import annotations

import os
import sys
import warnings

from .base import Handle, Transport

__all__ = ["Handle", "Transport", "detect"]


def detect() -> Transport:
    """The transport of the engine this process runs under; a single rank if there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        from .torch_dist import TorchTransport

        return TorchTransport()
    for framework in ("torch", "tensorflow"):
        horovod = sys.modules.get(f"horovod.{framework}")
        if horovod is not None and getattr(horovod, "is_initialized", bool)():
            from ._horovod_core import horovod_transport

            return horovod_transport()
    from .local import LocalTransport

    ranks = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and ranks != "1":
        warnings.warn(
            f"a launcher has started {ranks} ranks (WORLD_SIZE), but torch.distributed is not initialized, so this rank exchanges "
            "nothing with the others; call torch.distributed.init_process_group first.",
            stacklevel=3,
        )
    return LocalTransport()
