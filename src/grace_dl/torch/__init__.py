"""The original GRACE's names for Horovod with PyTorch: compressors, memories, communicators and `helper`.

Importing this package, or anything below it, lets `horovod.torch.DistributedOptimizer` accept the keyword `grace`; a call
without it behaves as before, and `disable()` removes the patch.
"""

from ..compat.bases import Compressor, Memory
from ..compat.communicators import Communicator
from ..integrations import horovod_patch

enable, disable, enabled = (
    horovod_patch.torch.enable,
    horovod_patch.torch.disable,
    horovod_patch.torch.enabled,
)
enable()

__all__ = ["Communicator", "Compressor", "Memory", "disable", "enable", "enabled"]
