"""The original GRACE's names for Horovod with TensorFlow 2 and Keras: compressors, memories, communicators and `helper`.

Importing this package, or anything below it, lets `DistributedOptimizer` and `DistributedGradientTape` of
`horovod.tensorflow`, `horovod.tensorflow.keras` and `horovod.keras` accept the keyword `grace`; a call without it behaves as
before, and `disable()` removes the patch. TensorFlow's tensors are shared with PyTorch's kernels through DLPack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..compat.tensorflow import Communicator, Compressor, Memory
from ..integrations import horovod_patch

if TYPE_CHECKING:
    from ..integrations.tensorflow.handle import TensorHandle

enable, disable, enabled = (
    horovod_patch.tensorflow.enable,
    horovod_patch.tensorflow.disable,
    horovod_patch.tensorflow.enabled,
)
enable()


def handle(method: Any, **options: Any) -> TensorHandle:
    """A handle for the tapes of a training loop, which are created at every step.

    Pass it as `hvd.DistributedGradientTape(tape, grace=handle)`. Options are those of Horovod's tape.
    """
    from ..integrations.tensorflow.options import handle_for

    return handle_for(method, options)


__all__ = ["Communicator", "Compressor", "Memory", "disable", "enable", "enabled", "handle"]
