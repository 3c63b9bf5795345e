"""Transports: a few collectives on top of each engine, one module per engine."""

from __future__ import annotations

import sys

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

    return LocalTransport()
