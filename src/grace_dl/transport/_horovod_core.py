"""Horovod's PyTorch operations, also in a process that has initialised Horovod for TensorFlow only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from .horovod import HorovodTransport


def horovod_transport(process_set: Any = None) -> HorovodTransport:
    """A transport on Horovod, whichever of its frameworks was initialised.

    Horovod keeps its two frameworks apart, each with connections of its own; what one has of process sets is
    registered with the other here.
    """
    try:
        import horovod.torch as hvd
        from horovod.torch import mpi_ops
    except ImportError as error:
        raise MissingExtraError(
            "Horovod was built without PyTorch, through which gradients travel for TensorFlow too; build it with "
            "`grace horovod install` in this environment."
        ) from error
    if not hvd.is_initialized():
        other = sys.modules["horovod.tensorflow"].mpi_ops._basics
        sets = [ranks for number, ranks in sorted(other._get_process_set_ids_and_ranks().items()) if number]
        hvd.init(process_sets=[hvd.ProcessSet(list(ranks)) for ranks in sets])
    from .horovod import HorovodTransport

    if process_set is None or process_set.process_set_id == 0:
        return HorovodTransport()
    for number, ranks in mpi_ops._basics._get_process_set_ids_and_ranks().items():
        if list(ranks) == list(process_set.ranks):
            mine = hvd.ProcessSet(list(ranks))
            mine.process_set_id = number
            return HorovodTransport(mine)
    raise ConfigError(
        f"{process_set} is not known to Horovod's PyTorch half; give it to hvd.init(process_sets=...), or register it "
        "with horovod.torch.add_process_set() too."
    )
