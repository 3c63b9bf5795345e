"""Horovod's PyTorch operations, also in a process that has initialised Horovod for TensorFlow only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError

if TYPE_CHECKING:
    from .horovod import HorovodTransport


def horovod_transport(process_set: Any = None) -> HorovodTransport:
    """A transport on Horovod, whichever of its frameworks was initialised."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise MissingExtraError(
            "Horovod was built without PyTorch, through which gradients travel for TensorFlow too; build it with "
            "`grace horovod install` in this environment."
        ) from error
    if not hvd.is_initialized():
        hvd.init()
    from .horovod import HorovodTransport

    return HorovodTransport(process_set)
